"""Wait for drafts, or verify what there is? The rule must pay for itself (DESIGN section 5, point 3).

All times are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.tree.window import Cost

MAX_WAITED_FOR = 8
WORTH = 1.1  # a wait must promise this much more: a processor that waits is slower when it goes on
DEFAULT_US = 600.0  # of a message there and back, before anything is known


@dataclass(slots=True)
class DrafterPace:
    """What the verifier believes about one drafter: a draft step, and what a wait takes besides (messages there and
    back, waking up, taking the verdict in: on a processor that was idle a millisecond is soon gone)."""

    step_us: float
    message_us: float = DEFAULT_US

    def time_to(self, drafts: int) -> float:
        """From sending a verdict to holding ``drafts`` new tokens in a row."""
        return self.message_us + drafts * self.step_us

    def waited(self, time_us: float, drafts: int) -> None:
        """It took so long until ``drafts`` tokens were there (or the wait was given up, and it takes longer)."""
        self._lean(time_us - drafts * self.step_us, 0.1)

    def went(self) -> None:
        """Nobody waited, so nothing was learnt: doubt slowly, or a bad moment would be believed for ever."""
        self._lean(DEFAULT_US, 0.003)

    def _lean(self, sample: float, weight: float) -> None:
        self.message_us += weight * (max(0.0, sample) - self.message_us)


def patience(pace: DrafterPace, cost: Cost, agreement: float, value_now: float) -> int:
    """How many draft tokens in a row are worth waiting for; 0: go now.

    Going now yields ``value_now`` tokens per microsecond. Waiting for m tokens yields
    ``(1 + a + ... + a^m) / (time_to(m) + cost(1 + m))`` with a the chance that a draft token is right.
    """
    best, best_value, expected = 0, value_now, 1.0
    for drafts in range(1, MAX_WAITED_FOR + 1):
        expected += agreement**drafts
        value = expected / (pace.time_to(drafts) + cost(1 + drafts))
        if value > best_value * WORTH:
            best, best_value = drafts, value
    return best


class Average:
    """Exponentially weighted mean that starts as a plain mean."""

    __slots__ = ("count", "most", "value")

    def __init__(self, value: float, most: int = 20, weight: float = 1.0) -> None:
        self.value = value
        self.count = weight
        self.most = most

    def add(self, sample: float) -> None:
        self.count = min(self.count + 1, self.most)
        self.value += (sample - self.value) / self.count


class Rate:
    """Tokens per microsecond of one request. It begins with what others before it reached: a request that knew only its
    first slow round would think that any row pays."""

    BORROWED = 4.0  # rounds' worth of trust in the others

    __slots__ = ("own", "usual")

    def __init__(self, usual: Average | None = None) -> None:
        """``usual``: of all requests of its kind, which this one adds to."""
        self.usual = usual if usual is not None else Average(0.0, weight=0.0)
        self.own = Average(self.usual.value, most=16, weight=self.BORROWED if self.usual.count else 0.0)

    @property
    def value(self) -> float:
        """0 as long as nothing is known."""
        return self.own.value

    def add(self, tokens: int, time_us: float) -> None:
        rate = tokens / max(1.0, time_us)
        self.own.add(rate)
        self.usual.add(rate)


class UsualRates:
    """What requests reach, by method and by whether they are sampled."""

    MEMORY = 200  # rounds

    def __init__(self) -> None:
        self._rates: dict[tuple[str, bool], Average] = {}

    def of(self, method: str, sampled: bool) -> Average:
        return self._rates.setdefault((method, sampled), Average(0.0, self.MEMORY, weight=0.0))
