"""Tokens per microsecond that a request reaches: the price of its time (docs/how-it-works.md, "One price")."""

from __future__ import annotations

from actors.estimate import Estimate, Pooled


class UsualRates:
    """Tokens per microsecond of all requests so far, by method and by whether they are sampled."""

    MEMORY = 200  # rounds

    def __init__(self) -> None:
        self._rates: dict[tuple[str, bool], Estimate] = {}

    def of(self, method: str, sampled: bool) -> Estimate:
        return self._rates.setdefault((method, sampled), Estimate(memory=self.MEMORY))


class Rate:
    """Tokens per microsecond of one request. It begins with what others before it reached: judged by its first slow
    round alone, any row would seem to pay."""

    BORROWED = 4.0  # rounds that the others' rate counts for
    MEMORY = 16  # rounds

    __slots__ = ("_own",)

    def __init__(self, usual: Estimate | None = None) -> None:
        """``usual``: the rate of all requests of its kind, which this request's rounds are added to as well."""
        self._own = Pooled(usual if usual is not None else Estimate(), self.BORROWED, self.MEMORY)

    @property
    def value(self) -> float:
        """0 while nothing is known."""
        return self._own.mean

    def add(self, tokens: int, time_us: float) -> None:
        self._own.add(tokens / max(1.0, time_us))
