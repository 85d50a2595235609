"""What is in force for a method with a drafter: the controller's word, or what the start-up calibration gives."""

from __future__ import annotations

import math
from collections.abc import Callable

from actors.controller.choice import kind_of
from actors.controller.command import command
from actors.controller.goodput import Belief, Setting, goodput, initial_setting
from actors.cost import CostModel
from actors.tree.methods import Kind
from actors.verifier.drafters.registry import DEFAULT_STEP_US, DrafterPeer
from protocols.messages import Budget, Method

EVERY = Kind("")
MAX_SAID = 64  # as many as a StatusReport holds
# A draft step, or a number of streams, that changed by less leaves what is promised as it was, and the initial setting:
# speed is flat in that (the paper's table 3: two tokens to either side cost 3%).
DRIFT, COARSE_DRIFT = 1.25, 2.0
UNKNOWN = CostModel({1: DEFAULT_STEP_US})  # steps of a drafter that is not there


class Budgets:
    """The controller's last word on each method and drafter, until its time to live is over or the controller is gone;
    then the same goodput with prior beliefs. So a controller that dies costs speed, and nothing else."""

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self._said: dict[Kind, tuple[Budget, float]] = {}  # with the time they end
        self._initial: dict[tuple[str, int, int], Setting] = {}
        self._first_budgets: dict[tuple[str, int, int], Budget] = {}
        self._promised: dict[tuple[str, int, int], float] = {}

    def file(self, budget: Budget, now: float) -> None:
        """``now`` in seconds, as everywhere here. Of more than ``MAX_SAID`` the oldest are forgotten."""
        self._said = {kind: known for kind, known in self._said.items() if now < known[1]}
        while len(self._said) >= MAX_SAID:
            del self._said[next(iter(self._said))]
        self._said[kind_of(budget)] = (budget, now + budget.ttl_ms / 1000)

    def forget(self) -> None:
        """Whoever said it is gone."""
        self._said.clear()

    def said(self, now: float) -> tuple[Budget, ...]:
        """All that the controller said and that still holds."""
        return tuple(budget for budget, until in self._said.values() if now < until)

    def of(self, kind: Kind, drafter: DrafterPeer | None, now: float, streams: Callable[[], int]) -> Budget:
        """What holds for a stream of that kind which ``drafter`` drafts for. ``streams``: how many share the forward;
        only asked where the controller has not spoken, because counting them for each of them takes a while."""
        own = kind._replace(drafter=drafter.actor_id if drafter is not None else "")
        for key in (own, kind, EVERY):
            budget, until = self._said.get(key, (None, 0.0))
            if budget is not None and now < until:
                return budget
        return self._first(kind.method, drafter.pace.steps if drafter is not None else UNKNOWN, max(1, streams()))

    def prepare(self, method: str, drafter: DrafterPeer) -> None:
        """What requests of that method will ask first of a drafter is found before they do."""
        self._setting(method, drafter.pace.steps)

    def promise(self, method: str, drafter: DrafterPeer, streams: int) -> float:
        """Tokens with that drafter over tokens without, in the same time, before anything is known of the text."""
        steps, streams = drafter.pace.steps, max(1, streams)
        key = (method, *_scale(DRIFT, self._relative(steps), streams))
        if key not in self._promised:
            belief = Belief(self.cost, steps, streams=streams)
            setting = self._setting(method, steps)
            promised = goodput(method, setting, belief) / goodput(method, None, belief)
            promised *= self.cost.lent(streams) / self.cost.own(streams)  # drafters that rest lend their CPUs
            self._promised[key] = promised
        return self._promised[key]

    def plain(self) -> float:
        """Tokens per microsecond of a stream alone without drafts, whose drafters rest."""
        return goodput(Method.VANILLA, None, Belief(self.cost.plain, UNKNOWN))

    def _setting(self, method: str, steps: CostModel) -> Setting:
        """That which prior chances make best for a stream alone. To find it takes some 40 ms, in which nobody is
        served: so not for every number of streams."""
        key = (method, *_scale(COARSE_DRIFT, self._relative(steps), 1))
        if key not in self._initial:
            self._initial[key] = initial_setting(method, Belief(self.cost, steps))
        return self._initial[key]

    def _relative(self, steps: CostModel) -> float:
        """A draft step against forwards, which may take longer or shorter now than when they were calibrated."""
        return steps(1) / self.cost.factor.mean

    def _first(self, method: str, steps: CostModel, streams: int) -> Budget:
        """The budget before the controller has spoken."""
        key = (method, *_scale(DRIFT, steps(1), streams))
        if key not in self._first_budgets:
            belief = Belief(self.cost, steps, streams=streams)
            self._first_budgets[key] = command(method, self._setting(method, steps), belief)
        return self._first_budgets[key]


def _scale(drift: float, step_us: float, streams: float) -> tuple[int, int]:
    """Equal for what differs by no more than ``drift``, or little more."""
    return round(math.log(max(1.0, step_us), drift)), round(math.log(streams, drift))
