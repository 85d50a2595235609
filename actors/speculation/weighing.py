"""The controller's mind on methods whose windows have prices (tree, auto): is the drafter worth it, and how much of it?

The verifier prices every row and every wait by itself. What it cannot see from inside a round is seen here: that the
drafts do not pay at all, that rows beyond some number never do, and how long a wait is worth with the drafter as it is.
"""

from __future__ import annotations

from actors.speculation.estimates import LineCost, Pace
from actors.speculation.pacing import Average
from protocols.messages import Budget, Method, RoundStats

MOST_RANKS = 64
CAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LOOK_ROUNDS = 20  # on, before the first word and in a probe
LEAST_REST, MOST_REST = 64, 2048  # rounds off before the next probe; doubles while probes fail
WORTH = 0.97  # drafting rests where it is measured to lose, stretches of text side by side ...
SURELY = 0.87  # ... or where the model is far from thinking otherwise
LEAST_ADDED = 0.02  # tokens a round: below, a core works for nothing, even where it does no harm
CAP_WORTH = 1.15
ROWS_PER_HIT = 3.0  # of the verifier's own guesses: what its windows are like on text that copies
CAP_ROUNDS = 192  # before what a cap hides is looked at again
NEVER_US = 1.0  # a wait bound that no draft can meet (0 would leave it to the verifier)


class PricedControl:
    """One priced method: what its rounds were like with and without the drafter, and the setting in force."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.on = Pace()
        self.off = Pace()
        self.gains = [Average(0.0, most=96, weight=0.0) for _ in range(MOST_RANKS)]  # accepted, by rank in the window
        self.reach = [Average(0.0, most=96, weight=0.0) for _ in range(MOST_RANKS)]  # share of windows so large
        self.first = Average(0.5, most=48, weight=2.0)  # windows whose root had a right child
        self.retrieved = Average(0.0, most=96, weight=0.0)
        self.drafting = True
        self.cap = 0
        self.rest = LEAST_REST
        self.since_change = 0
        self.since_cap = 0
        self.looking = False
        self.predicted = 0.0
        self.wait_us = 0.0

    @property
    def rounds(self) -> int:
        return self.on.rounds + self.off.rounds

    @property
    def window(self) -> float:
        """Mean number of draft tokens in a window."""
        return sum(r.value for r in self.reach[: self.cap or MOST_RANKS])

    @property
    def added(self) -> float:
        """Accepted tokens in a round that the verifier would not have guessed by itself."""
        return sum(g.value for g in self.gains) - self._right_alone

    @property
    def _right_alone(self) -> float:
        return self.retrieved.value if self.method == Method.AUTO else 0.0

    @property
    def measured(self) -> float:
        return (self.on if self.drafting else self.off).rate

    def observe(self, stats: RoundStats) -> None:
        self.since_change += 1
        self.since_cap += 1
        # A plan takes a round to arrive; its first rounds are a mixture.
        if self.since_change <= 2:
            return
        self.retrieved.add(stats.retrieved)
        drafted = not stats.resting
        (self.on if drafted else self.off).observe(stats)
        if not drafted:
            return
        if stats.wait_us > 0:  # for up to four drafts in a row, as far as can be told from here
            drafts = min(max(1, stats.window), 4)
            self.on.message.add(max(0.0, stats.wait_us - drafts * self.on.step.value))
        if stats.window > 0:
            self.first.add(1.0 if stats.accepted else 0.0)
        for rank in range(min(MOST_RANKS, self.cap or MOST_RANKS)):
            self.reach[rank].add(1.0 if rank < stats.window else 0.0)
            self.gains[rank].add(1.0 if rank in stats.ranks else 0.0)

    def budget(self, revision: int, ttl_ms: int) -> Budget:
        """``gamma``: mean draft tokens in a window, 0 where the drafter rests."""
        gamma = max(1, round(self.window)) if self.drafting else 0
        rates = (self.predicted * 1e6, self.measured * 1e6)
        return Budget(revision, "", gamma, 0, self.cap, self.wait_us, ttl_ms, *rates, self.method)

    # --- predictions, tokens per microsecond of one stream -----------------------------------------------------------

    def with_cap(self, cap: int, cost: LineCost) -> float:
        """``cap`` 0: none. The cost is a line, so that the mean window is all that it depends on."""
        most = min(cap or MOST_RANKS, self.cap or MOST_RANKS)
        tokens = 1 + sum(g.value for g in self.gains[:most])
        rows = 1 + sum(r.value for r in self.reach[:most])
        pace = self.on
        return tokens / (pace.per_stream(cost)(rows) + pace.overhead.value + pace.wait.value)

    def without(self, cost: LineCost) -> float:
        """No drafter: the verifier's own guesses alone."""
        pace = self.off if self.off.rounds > LOOK_ROUNDS else self.on
        right = self._right_alone
        return (1 + right) / (self.on.per_stream(cost)(1 + ROWS_PER_HIT * right) + pace.overhead.value)

    # --- the choice --------------------------------------------------------------------------------------------------

    def decide(self, cost: LineCost) -> bool:
        """Choose; whether there is anything to say yet."""
        if self.on.rounds < LOOK_ROUNDS:
            return False
        if not self.drafting:
            if self.since_change >= self.rest:
                self._switch(True)
        elif self.since_change >= LOOK_ROUNDS:
            self._weigh(cost)
        self._cap(cost)
        self._wait()
        self.predicted = self.with_cap(self.cap, cost) if self.drafting else self.without(cost)
        return True

    def _weigh(self, cost: LineCost) -> None:
        # The model knows a new pace sooner than a mean over rounds does, but it is no more than a model.
        rate = max(self.on.rate, self.with_cap(self.cap, cost))
        loses = rate < SURELY * self.without(cost) or (self._off_is_fresh() and rate < WORTH * self.off.rate)
        if loses or self.added < LEAST_ADDED:
            self.rest = min(MOST_REST, 2 * self.rest) if self.since_change < 3 * LOOK_ROUNDS else LEAST_REST
            self._switch(False)

    def _off_is_fresh(self) -> bool:
        """Whether resting was measured so lately that the world is still the same: in a probe."""
        return self.off.tokens.count >= LOOK_ROUNDS and self.since_change < 2 * LOOK_ROUNDS

    def _switch(self, drafting: bool) -> None:
        self.drafting = drafting
        self.since_change = 0
        pace = self.on if drafting else self.off
        pace.restart()
        for average in (self.first, *self.gains, *self.reach) if drafting else ():
            average.count = min(average.count, 4.0)

    def _cap(self, cost: LineCost) -> None:
        """A cap hides what lies beyond it: now and then twice as much is looked at."""
        if self.cap and not self.looking and self.since_cap >= CAP_ROUNDS:
            self.cap = 2 * self.cap if 2 * self.cap < CAPS[-1] else 0
            self.looking, self.since_cap = True, 0
            return
        if self.since_cap < LOOK_ROUNDS or not self.drafting or (self.cap and not self.looking):
            return
        best = max(CAPS, key=lambda cap: self.with_cap(cap, cost))
        pays = self.with_cap(best, cost) > CAP_WORTH * self.with_cap(self.cap, cost)
        if pays and (not self.cap or best < self.cap):
            self.cap, self.since_cap = best, 0
        elif self.looking:
            self.since_cap = 0  # the wider cap stays
        self.looking = False

    def _wait(self) -> None:
        """Streams that share a forward do not wait: who waits misses it, and the next one costs as much again. For a
        stream alone the verifier knows best what a wait is worth."""
        self.wait_us = 0.0 if self.on.streams.value < 1.5 else NEVER_US
