"""Tokens per microsecond that a request reaches: the price of its time (DESIGN section 5, point 3)."""

from __future__ import annotations

from actors.estimate import Estimate


class UsualRates:
    """Tokens per microsecond that requests reach, by method and by whether they are sampled."""

    MEMORY = 200  # rounds

    def __init__(self) -> None:
        self._rates: dict[tuple[str, bool], Estimate] = {}

    def of(self, method: str, sampled: bool) -> Estimate:
        return self._rates.setdefault((method, sampled), Estimate(memory=self.MEMORY))


class Rate:
    """Tokens per microsecond of one request, the price of its time. It begins with what others before it reached: a
    request that knew only its first slow round would think that any row pays."""

    BORROWED = 4.0  # rounds' worth of trust in the others
    MEMORY = 16  # rounds

    __slots__ = ("own", "usual")

    def __init__(self, usual: Estimate | None = None) -> None:
        """``usual``: of all requests of its kind, which this one adds to."""
        self.usual = usual if usual is not None else Estimate()
        self.own = Estimate(self.usual.mean, self.BORROWED if self.usual.known else 0.0, self.MEMORY)

    @property
    def value(self) -> float:
        """0 as long as nothing is known."""
        return self.own.mean

    def add(self, tokens: int, time_us: float) -> None:
        for estimate in (self.own, self.usual):
            estimate.add(tokens / max(1.0, time_us))
