"""Is the drafter worth it? Asked for method auto alone: a method that a user names does what its name says.

The verifier has guesses of its own there (retrieval), so that a drafter must bring more than they do, and more than it
costs: rounds that wait, rows that are verified, a core that is shared.
"""

from __future__ import annotations

from actors.estimate import Estimate
from actors.tree.window import Cost
from protocols.messages import RoundStats

LOOK_ROUNDS = 20  # before the first word and in a probe: a mean of 20 tells half a token a round from nothing
MIN_REST, MAX_REST = 64, 2048  # rounds until the next probe; doubles while probes fail, so that they cost 1% at last
MAX_STALL = 2.0  # times the usual round: what is longer says nothing of the drafter
MIN_ADDED = 0.02  # tokens a round: below, a core works for nothing, even where it does no harm
ROWS_PER_HIT = 3.0  # of the verifier's own guesses: what its windows are like on text that copies
SURE = 2.0  # standard errors


class Worth:
    """Whether to draft or to rest, and what rounds without a drafter are like."""

    def __init__(self) -> None:
        self.drafting = True
        self.since_change = 0
        self.rest = MIN_REST
        self.profit = Estimate(memory=96)  # tokens a round that drafting brings and resting would not, in the same time
        self.added = Estimate(memory=96)  # right drafts a round where the verifier guessed nothing by itself
        self.alone = Estimate(memory=96)  # right guesses a round of the verifier's own
        self.wall = Estimate(memory=48)
        self.base = Estimate()  # a resting round's time, were it one row

    def observe(self, stats: RoundStats, cost: Cost, overhead_us: float) -> None:
        """``cost``: of a forward by the rows of each stream."""
        self.since_change += 1
        if self.since_change <= 2:
            return  # a plan takes a round to arrive; its first rounds are a mixture
        if stats.resting:
            self.base.add(max(1.0, stats.wall_us - (cost(1 + stats.window) - cost(1))))
            self.alone.add(stats.accepted)
            return
        self.wall.add(stats.wall_us)
        self.alone.add(stats.retrieved)
        if not stats.retrieved:
            self.added.add(stats.accepted)
        # A round against what the same stretch of text would have been without the drafter. Comparing rates of
        # different stretches misleads: a text that copies is fast with any setting.
        wall = min(stats.wall_us, MAX_STALL * self.wall.mean)
        resting = self._resting(stats.retrieved, cost, overhead_us)
        self.profit.add(stats.committed - (1 + stats.retrieved) * wall / resting)

    def _resting(self, right: float, cost: Cost, overhead_us: float) -> float:
        """A round without the drafter in which the verifier guesses ``right`` tokens by itself."""
        lately = not self.drafting or self.since_change < 4 * LOOK_ROUNDS
        base = self.base.mean if lately and self.base.weight >= LOOK_ROUNDS else cost(1) + overhead_us
        return base + cost(round(1 + ROWS_PER_HIT * right)) - cost(1)

    def resting_rate(self, cost: Cost, overhead_us: float) -> float:
        """Tokens per microsecond without the drafter."""
        return (1 + self.alone.mean) / self._resting(self.alone.mean, cost, overhead_us)

    def decide(self) -> bool:
        """Whether the answer has changed."""
        if not self.drafting:
            if self.since_change < self.rest:
                return False
        elif self.since_change < LOOK_ROUNDS or not self._loses():
            return False
        else:
            self.rest = min(MAX_REST, 2 * self.rest) if self.since_change < 4 * LOOK_ROUNDS else MIN_REST
        self.drafting = not self.drafting
        self.since_change = 0
        self.alone.discount(0)
        if self.drafting:
            self.profit.discount(0)
            self.added.discount(0)
        else:
            self.base.discount(0)
        return True

    def _loses(self) -> bool:
        adds_nothing = self.added.weight >= LOOK_ROUNDS - 4 and self.added.mean < MIN_ADDED
        surely = self.profit.weight >= LOOK_ROUNDS - 4 and self.profit.mean + SURE * self.profit.error < 0
        return adds_nothing or surely
