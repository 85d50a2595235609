"""Wait for drafts, or verify what there is? The rule must pay for itself (DESIGN section 5, point 3).

All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.tree.window import Cost

MAX_WAITED_FOR = 8
WORTH = 1.1  # a wait must promise this much more: a processor that waits is slower when it goes on
DEFAULT_US = 600.0  # of a message there and back, before anything is known (measured: 0.3 to 1 ms on an idle core)


@dataclass(slots=True)
class DrafterPace:
    """What the verifier believes about one drafter: a draft step, and what a wait takes besides (messages there and
    back, waking up, taking the verdict in: on a processor that was idle a millisecond is soon gone)."""

    steps: CostModel
    message: Estimate = field(default_factory=lambda: Estimate(DEFAULT_US, weight=10, memory=10))

    @property
    def step_us(self) -> float:
        """Of one leaf."""
        return self.steps(1)

    def measured(self, steps: Sequence[tuple[int, float]]) -> None:
        """The drafter has measured its steps anew: (leaves, microseconds)."""
        self.steps = CostModel(dict(steps))

    def time_to(self, drafts: int) -> float:
        """From sending a verdict to holding ``drafts`` new tokens in a row."""
        return self.message.mean + drafts * self.step_us

    def waited(self, time_us: float, drafts: int) -> None:
        """It took so long until ``drafts`` tokens were there (or the wait was given up, and it takes longer)."""
        self.message.add(max(0.0, time_us - drafts * self.step_us))

    def went(self) -> None:
        """Nobody waited, so nothing was learnt: doubt slowly, or a bad moment would be believed for ever."""
        self.message.add(DEFAULT_US, weight=0.03)


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """What the controller allows one round: draft tokens, and microseconds of waiting. None: what the prices say."""

    window: int | None = None
    wait_us: float | None = None


NO_LIMITS = RoundLimits()


def patience(pace: DrafterPace, cost: Cost, agreement: float, value_now: float, longest_us: float | None = None) -> int:
    """How many draft tokens in a row are worth waiting for, ``longest_us`` at most; 0: go now.

    Going now yields ``value_now`` tokens per microsecond. Waiting for m tokens yields
    ``(1 + a + ... + a^m) / (time_to(m) + cost(1 + m))`` with a the chance that a draft token is right.
    """
    best, best_value, expected = 0, value_now, 1.0
    for drafts in range(1, MAX_WAITED_FOR + 1):
        if longest_us is not None and pace.time_to(drafts) > longest_us:
            break
        expected += agreement**drafts
        value = expected / (pace.time_to(drafts) + cost(1 + drafts))
        if value > best_value * WORTH:
            best, best_value = drafts, value
    return best


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
