"""The controller's mind on methods whose windows have prices (tree, auto): is the drafter worth it, and how much of it?

The verifier prices every row and every wait by itself. What it cannot see from inside a round is seen here: that the
drafts do not pay at all, that rows beyond some number never do, and that streams which share a forward should not wait.
"""

from __future__ import annotations

from actors.controller.belief import Evidence, LineCost, Pace
from actors.verifier.waiting import Average
from protocols.messages import Budget, Method, RoundStats

MAX_RANKS = 64
CAPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
LOOK_ROUNDS = 20  # on, before the first word and in a probe
MIN_REST, MAX_REST = 64, 2048  # rounds off before the next probe; doubles while probes fail
HICCUP = 2.0  # times the usual round: what is longer says nothing of the drafter
MIN_ADDED = 0.02  # tokens a round: below, a core works for nothing, even where it does no harm
COPIES = 0.5  # tokens a round that the verifier guesses right by itself
CAP_WORTH = 1.15
ROWS_PER_HIT = 3.0  # of the verifier's own guesses: what its windows are like on text that copies
CAP_ROUNDS = 192  # before what a cap hides is looked at again
NEVER_US = 1.0  # a wait bound that no draft can meet (0 would leave it to the verifier)


class PricedControl:
    """One priced method: what its rounds were like with and without the drafter, and the setting in force."""

    def __init__(self, method: str, cost: LineCost) -> None:
        self.method = method
        self.cost = cost
        self.on = Pace()
        self.off = Pace()
        self.off_base = Average(0.0, most=32, weight=0.0)  # a resting round's wall time, were it one row
        self.profit = Evidence(most=96)  # tokens a round that drafting brings and resting would not, in the same time
        self.gains = [Average(0.0, most=96, weight=0.0) for _ in range(MAX_RANKS)]  # accepted, by rank in the window
        self.reach = [Average(0.0, most=96, weight=0.0) for _ in range(MAX_RANKS)]  # share of windows so large
        self.retrieved = Average(0.0, most=96, weight=0.0)
        self.drafting = True
        self.cap = 0
        self.rest = MIN_REST
        self.since_change = 0
        self.since_cap = 0
        self.looking = False
        self.predicted = 0.0

    @property
    def rounds(self) -> int:
        return self.on.rounds + self.off.rounds

    @property
    def window(self) -> float:
        """Mean number of draft tokens in a window."""
        return sum(r.value for r in self.reach[: self.cap or MAX_RANKS])

    @property
    def added(self) -> float:
        """Accepted tokens in a round that the verifier would not have guessed by itself."""
        return sum(g.value for g in self.gains) - self._right_alone

    @property
    def _right_alone(self) -> float:
        return self.retrieved.value if self.method == Method.AUTO else 0.0

    @property
    def wait_us(self) -> float:
        """Streams that share a forward do not wait: who waits misses it, and the next one costs as much again. For a
        stream alone the verifier knows best what a wait is worth."""
        return 0.0 if self.on.streams.value < 1.5 else NEVER_US

    @property
    def measured(self) -> float:
        return (self.on if self.drafting else self.off).rate

    def observe(self, stats: RoundStats) -> None:
        self.since_change += 1
        self.since_cap += 1
        # A plan takes a round to arrive; its first rounds are a mixture.
        if self.since_change <= 2:
            return
        if stats.resting:
            self.off.observe(stats)
            self.off_base.add(max(1.0, stats.wall_us - self._beyond_one(stats.window)))
            return
        self.on.observe(stats)
        self.retrieved.add(stats.retrieved)  # of these rounds alone: a text that copies while it rests is another text
        self.profit.add(self._profit(stats))
        for rank in range(min(MAX_RANKS, self.cap or MAX_RANKS)):
            self.reach[rank].add(1.0 if rank < stats.window else 0.0)
            self.gains[rank].add(1.0 if rank in stats.ranks else 0.0)

    def budget(self, revision: int, ttl_ms: int) -> Budget:
        """``gamma``: mean draft tokens in a window, 0 where the drafter rests."""
        gamma = max(1, round(self.window)) if self.drafting else 0
        rates = (self.predicted * 1e6, self.measured * 1e6)
        return Budget(revision, "", gamma, 0, self.cap, self.wait_us, ttl_ms, *rates, self.method)

    # --- predictions, tokens per microsecond of one stream -----------------------------------------------------------

    def with_cap(self, cap: int) -> float:
        """``cap`` 0: none. The cost is a line, so that the mean window is all that it depends on."""
        most = min(cap or MAX_RANKS, self.cap or MAX_RANKS)
        tokens = 1 + sum(g.value for g in self.gains[:most])
        rows = 1 + sum(r.value for r in self.reach[:most])
        pace = self.on
        return tokens / (pace.per_stream(self.cost)(rows) + pace.overhead.value + pace.wait.value)

    def without(self) -> float:
        """No drafter: the verifier's own guesses alone."""
        right = self._right_alone
        if not self.drafting:  # this very text, if there was one round of it
            right = max(0.0, self.off.tokens.value - 1) if self.off.tokens.count else right
        return (1 + right) / self._resting_us(right)

    def _beyond_one(self, window: float) -> float:
        """What a window's rows take beside the root's."""
        forward = self.on.per_stream(self.cost)
        return forward(1 + window) - forward(1)

    def _resting_us(self, right: float) -> float:
        """A round without the drafter in which the verifier guesses ``right`` tokens by itself."""
        usual = self.on.per_stream(self.cost)(1) + (self.off if self.off.rounds else self.on).overhead.value
        base = self.off_base.value if self._off_is_fresh() else usual
        return base + self._beyond_one(ROWS_PER_HIT * right)

    def _profit(self, stats: RoundStats) -> float:
        """A round against what the same stretch of text would have been without the drafter.

        Comparing rates of different stretches misleads: a text that copies is fast with any setting.
        """
        alone = float(stats.retrieved) if self.method == Method.AUTO else 0.0
        wall = min(stats.wall_us, HICCUP * self.on.wall.value)
        return stats.committed - (1 + alone) * wall / self._resting_us(alone)

    # --- the choice --------------------------------------------------------------------------------------------------

    def decide(self) -> bool:
        """Choose; whether there is anything to say yet."""
        if self.on.rounds < LOOK_ROUNDS:
            return False
        if not self.drafting:
            if self.since_change >= self.rest:
                self._switch(True)
        elif self.since_change >= LOOK_ROUNDS:
            self._weigh()
        self._cap()
        self.predicted = self.with_cap(self.cap) if self.drafting else self.without()
        return True

    def _weigh(self) -> None:
        # Text that copies leaves a drafter nothing to add for a while, and will not copy for ever.
        patience = 3 * LOOK_ROUNDS if self._right_alone > COPIES else LOOK_ROUNDS
        adds_nothing = self.added < MIN_ADDED and self.since_change >= patience
        if adds_nothing or self.profit.surely_negative(LOOK_ROUNDS - 4):
            self.rest = min(MAX_REST, 2 * self.rest) if self.since_change < 4 * LOOK_ROUNDS else MIN_REST
            self._switch(False)

    def _off_is_fresh(self) -> bool:
        """Whether resting was measured so lately that the world is still the same: in a probe."""
        lately = not self.drafting or self.since_change < 4 * LOOK_ROUNDS
        return lately and self.off_base.count >= LOOK_ROUNDS

    def _switch(self, drafting: bool) -> None:
        self.drafting = drafting
        self.since_change = 0
        pace = self.on if drafting else self.off
        pace.restart()
        if drafting:
            for average in (self.retrieved, *self.gains, *self.reach):
                average.count = min(average.count, 4.0)
            self.profit.forget()
        else:
            self.off_base.count = 0.0

    def _cap(self) -> None:
        """A cap hides what lies beyond it: now and then twice as much is looked at."""
        if self.cap and not self.looking and self.since_cap >= CAP_ROUNDS:
            self.cap = 2 * self.cap if 2 * self.cap < CAPS[-1] else 0
            self.looking, self.since_cap = True, 0
            return
        if self.since_cap < LOOK_ROUNDS or not self.drafting or (self.cap and not self.looking):
            return
        best = max(CAPS, key=lambda cap: self.with_cap(cap))
        pays = self.with_cap(best) > CAP_WORTH * self.with_cap(self.cap)
        if pays and (not self.cap or best < self.cap):
            self.cap, self.since_cap = best, 0
        elif self.looking:
            self.since_cap = 0  # the wider cap stays
        self.looking = False
