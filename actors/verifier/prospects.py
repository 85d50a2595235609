"""What a drafter should bring to a request, by prediction and by what was measured, and whether it is worth a lease."""

from __future__ import annotations

from actors.verifier.drafters import DrafterPeer
from actors.verifier.plans import may_rest
from actors.verifier.standing import PAYS
from actors.verifier.state import State
from actors.verifier.streams import Request


def worth_lending(state: State, request: Request, drafter: DrafterPeer) -> bool:
    """Whether a drafter should bring a request more than the verifier's own draft model does.

    Once the drafter's speed-up on such requests is measured it may always be lent: its standing then decides when it
    rests. Before that, predictions are compared. A drafter with the very model that the verifier drafts with is
    compared by predictions on both sides, because texts that disappoint the one would disappoint the other."""
    if state.inline is None or not request.spec.strategy.inline or not may_rest(state, request):
        return True
    if drafter.standing(request).speedup.known:
        return True
    if drafter.hello.model_id == state.inline.model_id:
        return _promise(state, request, drafter) >= PAYS * state.own_drafts.promised
    return _promised(state, request, drafter) >= PAYS


def prior_speedup(state: State, request: Request, drafter: DrafterPeer) -> float:
    """The speed-up to expect of a drafter: as measured on other requests like this, and as predicted while little is
    measured. It is over the request without the drafter."""
    return drafter.standing(request).prior(_promised(state, request, drafter))


def promised_at(state: State, request: Request, drafter: DrafterPeer, agreement: float) -> float:
    """The speed-up that the model of a round promises where its first choice is right with that chance."""
    promised = state.budgets.promise_at(request.method, drafter, state.streams, agreement)
    return promised / speedup_without_drafter(state, request)


def speedup_without_drafter(state: State, request: Request) -> float:
    """The speed-up over plain decoding that the verifier's own draft model brings to requests like this."""
    if state.inline is None or not request.spec.strategy.inline:
        return 1.0
    return state.own_drafts.brings(request.kind)


def _promised(state: State, request: Request, drafter: DrafterPeer) -> float:
    """The predicted speed-up over the request without the drafter, which the verifier may draft for itself."""
    return _promise(state, request, drafter) / speedup_without_drafter(state, request)


def _promise(state: State, request: Request, drafter: DrafterPeer) -> float:
    """The predicted speed-up over plain decoding."""
    return state.budgets.promise(request.method, drafter, state.streams)
