"""What the budget controller believes and chooses: round statistics in, budgets out. No sockets, no clock of its own.

It maximises goodput, tokens per second, and not the acceptance rate: acceptance can stay at 0.9 while the right answer
flips from on to off (DESIGN section 5, point 4).
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from actors.controller.belief import LineCost, Pace
from actors.controller.goodput import Belief, best_setting, goodput
from actors.controller.weighing import PricedControl
from actors.tree.methods import Kind
from actors.tree.window import Cost
from actors.verifier.waiting import Average
from protocols.messages import Budget, DraftStats, Method, RoundStats

DEPTHS = 16
MAX_KINDS = 64  # of requests: the one that had no rounds for longest is forgotten
HEADS = 8
THETA = (Method.DUODECODING, Method.DUODECODING_LOCKSTEP)  # the number of sequences is chosen in every phase
ADAPTED = (Method.SPS, Method.PEARL, *THETA)
PRICED = (Method.TREE, Method.AUTO)
HYSTERESIS = 1.03  # a new setting must promise this much more than the one in force
WARM_UP = 6  # rounds before the first word
OFF_ROUNDS = 64  # rounds without speculation before a probe; doubles while probes fail
MAX_OFF = 2048
PROBE_ROUNDS = 8
PROBE_GAMMA = 2
SHRINK = 12.0  # observations' worth of trust in the rate over all depths
DOUBTS = 3
MIN_ACCEPTED = 0.05  # tokens a round: below, a core works for nothing, even where it does no harm
BIAS_FROM = 24  # rounds
WIDTH_PENALTY = 0.15


class MethodControl:
    """A method with chains: its acceptance, and the draft length in force."""

    def __init__(self, method: str, cost: LineCost) -> None:
        self.method = method
        self.cost = cost
        self.pace = Pace()
        self.pooled = Average(0.6, most=96, weight=3.0)  # over all depths: speaks where one depth has little to say
        self.depths = [Average(0.6, most=48, weight=0.0) for _ in range(DEPTHS)]
        self.heads = [Average(min(0.95, 0.6 + 0.05 * k), most=48, weight=3.0) for k in range(HEADS)]
        self.gamma: int | None = None
        self.theta = Average(1.5, most=32, weight=3.0)  # sequences that the theta rule chose
        self.since_change = 0
        self.predicted = 0.0
        self.probing = False
        self.rest = OFF_ROUNDS
        self.doubts = 0  # decisions in a row that would rather rest
        self.modelled = 0.0  # the model's rate of the setting in force, where speculation is on
        self.expected = Average(1.0, most=96, weight=0.0)  # tokens a round by it, and as they came
        self.tokens = Average(1.0, most=96, weight=0.0)
        self.bias = 1.0  # measured rate over the model's, where speculation is on

    @property
    def rounds(self) -> int:
        return self.pace.rounds

    @property
    def sequences(self) -> float:
        """How many there are in a phase, on the average: the theta rule chooses anew each time."""
        return max(1.0, self.theta.value) if self.method in THETA else 1.0

    def observe(self, stats: RoundStats) -> None:
        self.since_change += 1
        self.pace.observe(stats)
        if self.modelled and self.since_change > 2:
            self.expected.add(self.modelled * stats.wall_us)
            self.tokens.add(stats.committed)
        for depth in range(min(stats.accepted, DEPTHS)):
            self._saw(depth, 1.0)
        if stats.accepted < min(stats.window, DEPTHS):
            self._saw(stats.accepted, 0.0)
        elif stats.accepted == stats.window and stats.gamma > 0:
            for k in range(HEADS):
                self.heads[k].add(1.0 if 0 < stats.needed_sequences <= k + 1 else 0.0)
        if stats.sequences > 0:
            self.theta.add(stats.sequences)
        if self.method == Method.SPS and stats.draft_steps > 0:
            self.pace.message.add(max(0.0, stats.wait_us - self.pace.step.value * stats.draft_steps))
        elif stats.wait_us > 0:
            self.pace.message.add(max(0.0, stats.wait_us - self.pace.step.value))

    def _saw(self, depth: int, hit: float) -> None:
        self.depths[depth].add(hit)
        self.pooled.add(hit)

    def forget(self) -> None:
        """Let what comes next weigh more than what was: the world may have changed unseen."""
        for average in (self.pooled, *self.depths, *self.heads):
            average.count = min(average.count, 3.0)

    def belief(self) -> Belief:
        pooled = self.pooled.value
        depths = [(d.count * d.value + SHRINK * pooled) / (d.count + SHRINK) for d in self.depths]
        # The mean forward was as wide as there were sequences.
        step = self.pace.step.value / (1 + WIDTH_PENALTY * (self.sequences - 1))
        overhead, message = self.pace.overhead.value, self.pace.message.value
        return Belief([*depths, pooled], [h.value for h in self.heads], step, WIDTH_PENALTY, overhead, message)

    def decide(self) -> bool:
        """Choose; whether there is anything to say yet."""
        if self.rounds < WARM_UP:
            return False
        belief, cost = self.belief(), self.pace.per_stream(self.cost)
        gamma, value = best_setting(self.method, belief, cost, self.sequences)
        value *= self.bias
        off = self._loses(gamma, value, belief, cost)
        if self.gamma is None:
            self._change(gamma)
        elif self.probing:
            if self.since_change >= PROBE_ROUNDS:
                self.probing = False
                self.rest = min(MAX_OFF, 2 * self.rest) if off else OFF_ROUNDS
                self._change(0 if off else gamma)
        elif self.gamma == 0:
            if self.since_change >= self.rest:
                self._change(PROBE_GAMMA)
                self.probing = True
                self.forget()
        elif off:
            self.doubts += 1
            if self.doubts >= DOUBTS:  # resting lasts: be sure that it is no hiccup
                self._change(0)
        elif value > HYSTERESIS * self._rate(self.gamma, belief, cost):
            self._change(gamma)
        if not off:
            self.doubts = 0
        self._learn_bias(belief, cost)
        assert self.gamma is not None
        self.predicted = self._rate(self.gamma, belief, cost)
        return True

    def _loses(self, gamma: int, value: float, belief: Belief, cost: Cost) -> bool:
        """Whether no drafts at all are clearly better, or hardly a draft is ever right."""
        accepted, _ = belief.expected(gamma)
        return accepted < MIN_ACCEPTED or self._rate(0, belief, cost) > HYSTERESIS * value

    def _rate(self, gamma: int, belief: Belief, cost: Cost) -> float:
        return goodput(self.method, gamma, self.sequences, belief, cost) * (self.bias if gamma else 1.0)

    def _change(self, gamma: int) -> None:
        if (gamma == 0) != (self.gamma == 0):
            self.pace.restart()
        self.gamma, self.since_change = gamma, 0

    def _learn_bias(self, belief: Belief, cost: Cost) -> None:
        """The model knows nothing of drafts that survive, or come too late: it is held to what is measured.

        Round by round what it promised is set against what came, so that a change of the world is no bias.
        """
        assert self.gamma is not None
        self.modelled = goodput(self.method, self.gamma, self.sequences, belief, cost) if self.gamma else 0.0
        if self.expected.count >= BIAS_FROM:
            self.bias = min(max(self.tokens.value / self.expected.value, 0.7), 1.4)

    def budget(self, revision: int, ttl_ms: int) -> Budget:
        assert self.gamma is not None
        return Budget(
            revision,
            "",
            self.gamma,
            0,  # the theta rule is the method's own
            0,
            0.0,
            ttl_ms,
            self.predicted * 1e6,
            self.pace.rate * 1e6,
            self.method,
        )


class Control:
    """The controller's whole mind. ``decide`` is called now and then, and gives the budget of every kind of requests.

    Kinds share nothing: rounds with a fixed number of sequences would teach the theta rule's what is not so.
    """

    def __init__(self, ttl_ms: int = 5000) -> None:
        self.ttl_ms = ttl_ms
        self.kinds: OrderedDict[Kind, MethodControl | PricedControl] = OrderedDict()  # the latest last
        self.revision = 0
        self.fresh: set[Kind] = set()  # with rounds since the last decision

    def observe_round(self, stats: RoundStats) -> None:
        kind = Kind(stats.method, stats.fixed_gamma, stats.fixed_sequences)
        control = self.kinds.get(kind)
        if control is None:
            if stats.method in ADAPTED:
                control = MethodControl(stats.method, LineCost())
            elif stats.method in PRICED:
                control = PricedControl(stats.method, LineCost())
            else:
                return
            self.kinds[kind] = control
            if len(self.kinds) > MAX_KINDS:
                forgotten, _ = self.kinds.popitem(last=False)
                self.fresh.discard(forgotten)
        self.kinds.move_to_end(kind)
        control.cost.observe(stats.rows, stats.forward_us)
        control.observe(stats)
        self.fresh.add(kind)

    def observe_draft(self, stats: DraftStats) -> None:
        """Rounds tell of draft steps sooner than a drafter's report."""

    def decide(self) -> list[Budget]:
        """The budgets of those that have had rounds since the last call."""
        decided = []
        for kind in sorted(self.fresh):
            control = self.kinds[kind]
            if control.decide():
                self.revision += 1
                budget = control.budget(self.revision, self.ttl_ms)
                fixed = {"fixed_gamma": kind.fixed_gamma, "fixed_sequences": kind.fixed_sequences}
                decided.append(msgspec.structs.replace(budget, **fixed))
        self.fresh.clear()
        return decided
