"""The budget in force for a method with a drafter: the controller's, or what follows from the start-up calibration."""

from __future__ import annotations

import math
from collections.abc import Callable

from actors.controller.choice import kind_of
from actors.controller.command import command
from actors.controller.goodput import PRIOR_RANKS, Belief, Setting, goodput, initial_setting
from actors.cost import CostModel
from actors.methods import Kind
from actors.verifier.drafters import DEFAULT_STEP_US, DrafterPeer
from protocols.messages import Budget, Method

EVERY = Kind("")
MAX_SAID = 64  # as many as a StatusReport holds
# Predictions and settings are computed once and kept until a draft step or the number of streams has changed by such a
# factor. Speed depends little on either: two draft tokens more or less cost 3% (arXiv 2503.00784, table 3).
DRIFT = 1.25  # of predictions and budgets
COARSE_DRIFT = 2.0  # of initial settings, which take 40 ms to find
UNKNOWN = CostModel({1: DEFAULT_STEP_US})  # draft steps where there is no drafter


class Budgets:
    """The controller's latest budget for each method and drafter, until its time to live is over or the controller is
    gone. Then the budget is what the controller's own goodput function makes of prior beliefs, so that the loss of a
    controller costs speed and nothing else."""

    def __init__(self, cost: CostModel) -> None:
        """``cost``: of the target's forwards."""
        self.cost = cost
        self._said: dict[Kind, tuple[Budget, float]] = {}  # the controller's, with the seconds at which they end
        # by method and, in steps of DRIFT or COARSE_DRIFT, draft step and number of streams:
        self._initial: dict[tuple[str, int, int], Setting] = {}
        self._first_budgets: dict[tuple[str, int, int], Budget] = {}
        self._promised: dict[tuple[str, int, int], float] = {}

    def file(self, budget: Budget, now: float) -> None:
        """Take the controller's budget. ``now`` in seconds, as everywhere here. Beyond ``MAX_SAID`` the oldest are
        forgotten."""
        self._said = {kind: known for kind, known in self._said.items() if now < known[1]}
        while len(self._said) >= MAX_SAID:
            del self._said[next(iter(self._said))]
        self._said[kind_of(budget)] = (budget, now + budget.ttl_ms / 1000)

    def forget(self) -> None:
        """The controller is gone, and its budgets with it."""
        self._said.clear()

    def said(self, now: float) -> tuple[Budget, ...]:
        """The controller's budgets that are in force."""
        return tuple(budget for budget, until in self._said.values() if now < until)

    def of(self, kind: Kind, drafter: DrafterPeer | None, now: float, streams: Callable[[], int]) -> Budget:
        """The budget of a request of that kind which ``drafter`` drafts for. ``streams`` counts the requests that share
        its forward; it is only called where the controller's budget does not decide, because counting takes a while."""
        own = kind._replace(drafter=drafter.actor_id if drafter is not None else "")
        for key in (own, kind, EVERY):
            budget, until = self._said.get(key, (None, 0.0))
            if budget is not None and now < until:
                return budget
        return self._first(kind.method, drafter.pace.steps if drafter is not None else UNKNOWN, max(1, streams()))

    def prepare(self, method: str, drafter: DrafterPeer) -> None:
        """Find a drafter's initial setting for a method before a request has to wait for that."""
        self._setting(method, drafter.pace.steps)

    def promise(self, method: str, drafter: DrafterPeer, streams: int) -> float:
        """The predicted speed-up with that drafter over plain decoding, for a text of which nothing is known."""
        steps, streams = drafter.pace.steps, max(1, streams)
        key = (method, *_scale(DRIFT, self._relative(steps), streams))
        if key not in self._promised:
            self._promised[key] = self._speedup(method, steps, Belief(self.cost, steps, streams=streams))
        return self._promised[key]

    def promise_at(self, method: str, drafter: DrafterPeer, streams: int, agreement: float) -> float:
        """As :meth:`promise`, of a text where the drafter's first choice is right with that chance. Not remembered,
        and half a millisecond for a tree: ask seldom."""
        pace = drafter.pace
        others = (1 - agreement) / (1 - PRIOR_RANKS[0])  # chances of other choices, over the prior's
        belief = Belief(
            self.cost,
            pace.steps,
            ranks=[agreement, *(others * chance for chance in PRIOR_RANKS[1:])],
            acceptance=[agreement],
            message_us=pace.message.mean,
            streams=max(1, streams),
        )
        return self._speedup(method, pace.steps, belief)

    def _speedup(self, method: str, steps: CostModel, belief: Belief) -> float:
        promised = goodput(method, self._setting(method, steps), belief) / goodput(method, None, belief)
        streams = round(belief.streams)
        return promised * self.cost.lent(streams) / self.cost.own(streams)  # drafters that rest lend their CPUs

    def plain(self) -> float:
        """Tokens per microsecond of a single stream without drafts, while all drafters rest."""
        return goodput(Method.VANILLA, None, Belief(self.cost.plain, UNKNOWN))

    def _setting(self, method: str, steps: CostModel) -> Setting:
        """The best setting of a single stream by prior acceptance. Finding it takes some 40 ms in which nobody is
        served, so it is not done for every number of streams."""
        key = (method, *_scale(COARSE_DRIFT, self._relative(steps), 1))
        if key not in self._initial:
            self._initial[key] = initial_setting(method, Belief(self.cost, steps))
        return self._initial[key]

    def _relative(self, steps: CostModel) -> float:
        """Microseconds of a draft step on the time scale of the target's calibration: forwards may take longer now."""
        return steps(1) / self.cost.factor.mean

    def _first(self, method: str, steps: CostModel, streams: int) -> Budget:
        """The budget without a controller."""
        key = (method, *_scale(DRIFT, steps(1), streams))
        if key not in self._first_budgets:
            belief = Belief(self.cost, steps, streams=streams)
            self._first_budgets[key] = command(method, self._setting(method, steps), belief)
        return self._first_budgets[key]


def _scale(drift: float, step_us: float, streams: float) -> tuple[int, int]:
    """Both rounded to whole powers of ``drift``: equal for values that differ by less than about that factor."""
    return round(math.log(max(1.0, step_us), drift)), round(math.log(streams, drift))
