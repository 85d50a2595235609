"""Is the drafter worth it? Asked for method auto alone: a method that a user names does what its name says.

The verifier has guesses of its own there (retrieval), so that a drafter must bring more than they do, and more than it
costs: rounds that wait, rows that are verified, a core that is shared.
"""

from __future__ import annotations

import math

from actors.estimate import Estimate
from actors.tree.window import Cost
from protocols.messages import RoundStats

LOOK_ROUNDS = 20  # before the first word and in a probe: a mean of 20 tells half a token a round from nothing
MIN_REST, MAX_REST = 64, 2048  # rounds until the next probe; doubles while probes fail, so that they cost 1% at last
MAX_STALL = 2.0  # times the usual round: what is longer says nothing of the drafter
MIN_ADDED = 0.02  # tokens a round: below, a core works for nothing, even where it does no harm
ROWS_PER_HIT = 3.0  # of the verifier's own guesses: what its windows are like on text that copies
SURE = 2.5  # standard errors: it is asked every round, and by chance 2 come by in one of three stretches
CHANGED = 3.0  # standard errors between the latest rounds and those before: it is another text, or another load
# Rounds. A round's profit scatters by some 0.8 tokens: 96 tell a text that changed from one that did not, 400 tell 0.04
# tokens, 3% of a rate. Where the two sides are no further apart than that, the sign decides.
RECENT, SETTLED = 96, 400


class Worth:
    """Whether to draft or to rest, and what rounds without a drafter are like.

    What a drafting round costs beside its forward (fragments to file, a window to choose, verdicts to send) is in its
    time. What it would have cost without a drafter is known from rests alone. Before the first one, and for what has
    changed since the last, the least that it can be is believed: then a drafter which clearly pays is never asked to
    rest for a measurement, and one which may not pay rests, and the next look at it knows better.
    """

    def __init__(self) -> None:
        self.drafting = True
        self.since_change = 0
        self.rest = 0  # rounds, of the last rest or the one under way
        # Tokens a round that drafting brings and resting would not, in the same time: of late, and as far back as
        # nothing has changed, rests included.
        self.recent, self.settled = Estimate(memory=RECENT), Estimate(memory=SETTLED)
        self.added = Estimate(memory=96)  # right drafts a round where the verifier guessed nothing by itself
        self.alone = Estimate(memory=96)  # right guesses a round of the verifier's own
        self.wall = Estimate(memory=48)
        self.base = Estimate()  # a resting round's time, were it one row, over that row's calibrated forward
        self.overhead = Estimate()  # microseconds of a resting round beside its forward

    def observe(self, stats: RoundStats, cost: Cost) -> None:
        """``cost``: of a forward by the rows of each stream."""
        self.since_change += 1
        if self.since_change <= 2:
            return  # a plan takes a round to arrive; its first rounds are a mixture
        if stats.resting:
            one_row = max(1.0, stats.wall_us - (cost(1 + stats.window) - cost(1)))
            self.base.add(one_row * stats.slowdown / cost(1))
            self.overhead.add(max(0.0, stats.wall_us - stats.forward_us))
            self.alone.add(stats.accepted)
            return
        self.wall.add(stats.wall_us)
        self.alone.add(stats.retrieved)
        if not stats.retrieved:
            self.added.add(stats.accepted)
        # A round against what the same stretch of text would have been without the drafter. Comparing rates of
        # different stretches misleads: a text that copies is fast with any setting.
        wall = min(stats.wall_us, MAX_STALL * self.wall.mean)
        profit = stats.committed - (1 + stats.retrieved) * wall / self._resting(stats.retrieved, cost, stats.slowdown)
        self.recent.add(profit)
        self.settled.add(profit)

    def _resting(self, right: float, cost: Cost, slowdown: float) -> float:
        """A round without the drafter in which the verifier guesses ``right`` tokens by itself: the least that it can
        be. A drafter may slow the forward down that runs beside it, and so may others: only a rest tells who does."""
        calibrated = cost(1) / slowdown
        one_row = min(cost(1) + self.overhead.mean, self.base.mean * calibrated) if self.base.known else calibrated
        return one_row + cost(round(1 + ROWS_PER_HIT * right)) - cost(1)

    def resting_rate(self, cost: Cost, slowdown: float) -> float:
        """Tokens per microsecond without the drafter."""
        return (1 + self.alone.mean) / self._resting(self.alone.mean, cost, slowdown)

    def decide(self) -> bool:
        """Whether the answer has changed."""
        if not self.drafting:
            if self.since_change < self.rest:
                return False
        elif self.since_change < LOOK_ROUNDS or not self._loses():
            return False
        elif self.base.known:
            self.rest = min(MAX_REST, max(MIN_REST, 2 * self.rest))
        else:  # only a look: what was believed of rests until now is too little to go by
            self.rest = LOOK_ROUNDS
            self.settled.discount(0)
        self.drafting = not self.drafting
        self.since_change = 0
        self.alone.discount(0)
        if self.drafting:
            self.recent.discount(0)
            self.settled.discount(SETTLED - 4 * LOOK_ROUNDS)  # so many have a say before a small difference decides
            self.added.discount(0)
        else:
            self.base.discount(0)
            self.overhead.discount(0)
        return True

    def _loses(self) -> bool:
        if self.added.weight >= LOOK_ROUNDS - 4 and self.added.mean < MIN_ADDED:
            return True
        recent, settled = self.recent, self.settled
        if recent.weight < LOOK_ROUNDS - 4:
            return False
        if abs(recent.mean - settled.mean) > CHANGED * math.hypot(recent.error, settled.error):
            self.settled = settled = recent.copy(SETTLED)
            self.rest = min(self.rest, MIN_REST // 2)
        surely = any(one.mean + SURE * one.error < 0 for one in (recent, settled))
        return surely or (settled.weight >= SETTLED and settled.mean < 0)
