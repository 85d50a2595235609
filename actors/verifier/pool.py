"""Which drafter a stream is given to, where there are several: the one that brings it most, by what was measured."""

from __future__ import annotations

from actors.verifier.course import MIN_PLACES, agreement
from actors.verifier.drafters import DrafterPeer
from actors.verifier.prospects import prior_speedup, promised_at, worth_lending
from actors.verifier.standing import LOOK
from actors.verifier.state import State
from actors.verifier.streams import Request

CLEARLY = 1.15  # times what the present drafter brings: a move costs a text to read, two estimates are 5% off each
STAY_ROUNDS = 48  # before a stream is moved again: what it has measured in fewer says little
MIN_STEP = 1.5  # a drafter of the same model is another only if its step differs by this factor
# By so much the model of a round is off for one drafter as for the other on the same text (docs/controller.md). What
# the present one has beyond that, such as drafts that never come, is its own fault.
MODEL_OFF = 1.15
BEST = 0.98  # share of right choices that no draft model passes


class Pool:
    def __init__(self, state: State) -> None:
        self.state = state

    def choose(self, request: Request, now: float) -> DrafterPeer | None:
        """Who takes that request; among equals the least burdened, then the fastest."""
        return max(
            self._able(request, now),
            key=lambda d: (round(self._gain(request, d), 3), -len(d.leases), -d.pace.step_us),
            default=None,
        )

    def better(self, request: Request, now: float) -> DrafterPeer | None:
        """Who should have that request instead of its present drafter: one that is clearly better, by what it brought
        to this text or would have drafted for it, or by what it brought to others."""
        present = self._present(request)
        if present is None:
            return None
        others = self._others(request, present, now)
        known = (other for other in others if self._known(request, present, other, now))
        best = max(known, key=lambda d: self._gain(request, d), default=None)
        if best is None or not self._clearly(request, self._gain(request, best), present):
            return None
        return best

    # --- shadows -----------------------------------------------------------------------------------------------------

    def to_ask(self, request: Request, now: float) -> DrafterPeer | None:
        """Who may be asked what it would have drafted for that request instead of its present drafter."""
        present = self._present(request)
        if present is None:
            return None
        others = self._others(request, present, now)
        return next((other for other in others if self._may_ask(request, present, other, now)), None)

    def hopeful(self, request: Request, present: DrafterPeer, drafter: DrafterPeer) -> bool:
        """Whether it would be clearly better if it were right nearly always."""
        here = agreement(request.course(present.actor_id).places)
        best = self.foreseen(request, present, drafter, here, BEST)
        return self._clearly(request, self._burdened(request, drafter, best), present)

    def foreseen(
        self, request: Request, present: DrafterPeer, drafter: DrafterPeer, here: float, there: float
    ) -> float:
        """The speed-up that a drafter would bring to that request, if its first choice is right in a share ``there`` of
        the places where the present one's is in a share ``here``. What the model of a round makes of that is as far off
        as for the present drafter, of which the speed-up is known."""
        brings = self._expected(request, present)
        off = brings / promised_at(self.state, request, present, here)
        return min(max(off, 1 / MODEL_OFF), MODEL_OFF) * promised_at(self.state, request, drafter, there)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _present(self, request: Request) -> DrafterPeer | None:
        """Its drafter, if another may take its place."""
        present = self.state.drafters.of(request.drafter)
        if present is None or present.reserve or (request.rounds_with_drafter < STAY_ROUNDS and not request.resting):
            return None
        return present

    def _others(self, request: Request, present: DrafterPeer, now: float) -> list[DrafterPeer]:
        if len(self.state.drafters.by_peer) < 2:
            return []
        return [drafter for drafter in self._able(request, now) if drafter is not present]

    def _able(self, request: Request, now: float) -> list[DrafterPeer]:
        return [d for d in self.state.drafters.able(request, now) if worth_lending(self.state, request, d)]

    def _may_ask(self, request: Request, present: DrafterPeer, other: DrafterPeer, now: float) -> bool:
        if now < other.shadow_after or not _differ(present, other):
            return False
        enough = len(request.course(present.actor_id).places) >= MIN_PLACES
        return enough and request.course(other.actor_id).due(request.spec.round)

    def _known(self, request: Request, present: DrafterPeer, other: DrafterPeer, now: float) -> bool:
        """Whether enough is known of another drafter. Other texts tell where it cannot be asked about this one."""
        if request.course(other.actor_id).known:
            return True
        return other.standing(request).speedup.weight >= LOOK and not self._may_ask(request, present, other, now)

    def _expected(self, request: Request, drafter: DrafterPeer) -> float:
        return request.course(drafter.actor_id).expected(prior_speedup(self.state, request, drafter))

    def _gain(self, request: Request, drafter: DrafterPeer) -> float:
        return self._burdened(request, drafter, self._expected(request, drafter))

    def _burdened(self, request: Request, drafter: DrafterPeer, speedup: float) -> float:
        """What it adds to each of the stream's tokens, with one lease more than it has, or with those that it has if
        the stream is one of them: a drafter that has more to do does less for each."""
        streams = len(drafter.leases | {request.rid})
        steps = drafter.pace.steps
        return (speedup - 1.0) * steps(1) / steps(streams)

    def _clearly(self, request: Request, gain: float, present: DrafterPeer) -> bool:
        return 1 + gain > CLEARLY * (1 + max(0.0, self._gain(request, present)))


def _differ(one: DrafterPeer, other: DrafterPeer) -> bool:
    ratio = one.pace.step_us / other.pace.step_us
    return one.hello.model_id != other.hello.model_id or ratio > MIN_STEP or ratio * MIN_STEP < 1
