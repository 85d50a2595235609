"""How a request is to be drafted for, and what its rounds are allowed: by what it asks for itself, by the operator's
settings, and by the controller's budget."""

from __future__ import annotations

from actors.methods import Kind, Strategy
from actors.verifier.drafters import DrafterPeer
from actors.verifier.state import State
from actors.verifier.streams import Request
from actors.verifier.waits import NO_LIMITS, RoundLimits
from protocols.messages import Budget, Generate, Method, Plan


def plan_for(state: State, request: Request, drafter: DrafterPeer, now: float) -> Plan:
    """How ``drafter`` is to draft for a request. While it is to rest the method is vanilla: nothing is drafted."""
    strategy, message = request.spec.strategy, request.message
    if request.resting and may_rest(state, request):
        return Plan(Method.VANILLA)
    return first_plan(state, strategy, message, drafter, now)


def first_plan(state: State, strategy: Strategy, message: Generate, drafter: DrafterPeer | None, now: float) -> Plan:
    """The plan of a request that does not rest. Its gamma is the request's own, else that of the operator's settings,
    the controller's, or what the start-up calibration gives; its sequences are found in the same order, but that the
    last two only limit what the theta rule finds."""
    gamma = _gamma(state, message) or None
    sequences = message.sequences or state.settings.sequences or None
    if not strategy.drafter:
        return Plan(strategy.method, gamma, sequences)
    budget = _budget(state, strategy, message, drafter, now)
    return Plan(strategy.method, gamma or budget.gamma, sequences, budget.sequences)


def round_limits(state: State, request: Request, now: float) -> RoundLimits:
    """How many draft tokens the controller allows one round of a request, and how long a wait."""
    drafter = state.drafters.of(request.drafter)
    if drafter is None:  # the price of rows limits its window, and there is nobody to wait for
        return NO_LIMITS
    budget = _budget(state, request.spec.strategy, request.message, drafter, now)
    return RoundLimits(budget.window, budget.wait_us)


def may_rest(state: State, request: Request) -> bool:
    """Whether the verifier may decide that the request does without drafts: not if it asks for a draft length."""
    return request.spec.strategy.may_rest and not _gamma(state, request.message)


def _budget(state: State, strategy: Strategy, message: Generate, drafter: DrafterPeer | None, now: float) -> Budget:
    return state.budgets.of(
        Kind(strategy.method, message.num_speculative_tokens, message.sequences), drafter, now, lambda: state.streams
    )


def _gamma(state: State, message: Generate) -> int:
    return message.num_speculative_tokens or state.settings.num_speculative_tokens
