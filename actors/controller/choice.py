"""What the budget controller chooses: round statistics in, budgets out. No sockets, no clock of its own.

It maximises goodput, tokens per second, and not the acceptance rate: acceptance can stay at 0.9 while the right answer
flips from on to off.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from actors.controller.belief import Observed
from actors.controller.command import command
from actors.controller.goodput import (
    SEQUENCES,
    Belief,
    Setting,
    alternatives,
    dimensions,
    goodput,
    initial_setting,
)
from actors.cost import CostModel
from actors.estimate import Estimate
from actors.methods import Kind, strategy_for
from protocols.limits import Mean, within
from protocols.messages import Budget, DraftStats, RoundStats

HYSTERESIS = 1.03  # a new setting must promise this much more than the one in force: gamma is flat to about 3%
EQUAL = 0.997  # settings whose promises differ by less are equal
WARM_UP = 6  # rounds before the first word
MAX_KINDS = 64  # of requests, and drafters: the one that was silent for longest is forgotten
UNKNOWN = {1: 1000.0}  # microseconds, until the verifier and the drafter have told what they measured


class MethodControl:
    """One kind of requests: what is believed of it, and the setting in force."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.observed = Observed()
        self.setting: Setting | None = None
        self.rounds = 0
        self.turn = 0  # which dimension is looked at next
        self.modelled = 0.0  # tokens per microsecond of the setting in force, by the model
        self.bias = Estimate(1.0, weight=10, memory=96)  # tokens that came over tokens that the model promised

    def observe(self, stats: RoundStats) -> None:
        self.rounds += 1
        most = self.setting.sequences if self.setting is not None else SEQUENCES[-1]
        self.observed.observe(stats, most)
        if self.modelled:
            self.bias.add_ratio(stats.committed, self.modelled * stats.wall_us)

    def decide(self, cost: CostModel, step: CostModel) -> Budget | None:
        """The budget that should be in force; None: there is nothing to say yet."""
        if self.rounds < WARM_UP:
            return None
        belief = self.observed.belief(cost, step)
        if self.setting is None:
            self.setting = initial_setting(self.method, belief)
        else:
            self._improve(belief)
        self.modelled = goodput(self.method, self.setting, belief)
        return self._budget(belief)

    def _improve(self, belief: Belief) -> None:
        """Look along one dimension: the others have their turn at the next decisions. Of equal settings the smallest is
        best: what is drafted in vain still keeps the drafter in the middle of a step when the verdict comes."""
        assert self.setting is not None
        names = dimensions(self.method)
        self.turn = (self.turn + 1) % len(names)
        found = [
            (one, goodput(self.method, one, belief))
            for one in alternatives(self.method, self.setting, names[self.turn])
        ]
        best = max(rate for _, rate in found)
        for setting, rate in found:
            if rate > EQUAL * best or (setting == self.setting and rate * HYSTERESIS > best):
                self.setting = setting
                return

    def _budget(self, belief: Belief) -> Budget:
        assert self.setting is not None
        return msgspec.structs.replace(
            command(self.method, self.setting, belief),
            predicted_tokens_per_second=within(self.modelled * self.bias.mean * 1e6, Mean),
            measured_tokens_per_second=within(self.observed.rate * 1e6, Mean),
        )


class Control:
    """The controller's whole mind. ``decide`` is called now and then, and gives the budget of every kind of requests.

    Kinds share nothing: rounds with a fixed number of sequences would teach the theta rule's what is not so.
    """

    def __init__(self, ttl_ms: int = 5000) -> None:
        self.ttl_ms = ttl_ms
        self.cost = CostModel(UNKNOWN)
        self.steps: dict[str, CostModel] = {}  # by drafter, the latest last
        self.kinds: OrderedDict[Kind, MethodControl] = OrderedDict()  # the latest last
        self.revision = 0
        self.fresh: set[Kind] = set()  # with rounds since the last decision

    def calibrated(self, forward_us: Iterable[tuple[int, float]]) -> None:
        """What the verifier measured when it started: forward time by rows."""
        self.cost = CostModel(dict(forward_us) or UNKNOWN)

    def observe_round(self, stats: RoundStats) -> None:
        self.cost.factor.mean = stats.slowdown
        if stats.resting or not stats.drafter or not strategy_for(stats.method).drafter:
            return
        kind = Kind(stats.method, stats.fixed_gamma, stats.fixed_sequences, stats.drafter)
        control = self.kinds.setdefault(kind, MethodControl(stats.method))
        self.kinds.move_to_end(kind)
        if len(self.kinds) > MAX_KINDS:
            forgotten, _ = self.kinds.popitem(last=False)
            self.fresh.discard(forgotten)
        control.observe(stats)
        self.fresh.add(kind)

    def observe_draft(self, stats: DraftStats) -> None:
        if stats.step_us:
            self.steps.pop(stats.actor_id, None)
            self.steps[stats.actor_id] = CostModel(dict(stats.step_us))
            if len(self.steps) > MAX_KINDS:
                del self.steps[next(iter(self.steps))]

    def decide(self) -> list[Budget]:
        """The budgets of those that have had rounds since the last call."""
        decided = []
        for kind in sorted(self.fresh):
            budget = self.kinds[kind].decide(self.cost, self.steps.get(kind.drafter) or CostModel(UNKNOWN))
            if budget is not None:
                self.revision += 1
                named = {
                    "drafter": kind.drafter,
                    "fixed_gamma": kind.fixed_gamma,
                    "fixed_sequences": kind.fixed_sequences,
                    "revision": self.revision,
                    "ttl_ms": self.ttl_ms,
                }
                decided.append(msgspec.structs.replace(budget, **named))
        self.fresh.clear()
        return decided


def kind_of(budget: Budget) -> Kind:
    """The requests that a budget is for."""
    return Kind(budget.method or "", budget.fixed_gamma, budget.fixed_sequences, budget.drafter or "")
