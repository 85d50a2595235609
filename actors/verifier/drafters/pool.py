"""Which drafter a stream is given to, where there are several: the one that brings it most, by what was measured."""

from __future__ import annotations

from actors.verifier.drafters.registry import DrafterPeer
from actors.verifier.drafters.standing import LOOK
from actors.verifier.requests.request import Request
from actors.verifier.state import State

CLEARLY = 1.15  # times what the present drafter brings: a move costs a text to read, two estimates are 5% off each
STAY_ROUNDS = 48  # before a stream is moved again: what it has measured in fewer says little
MIN_STEP = 1.5  # a drafter of the same model is another only if its step differs by this factor


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
        """Who should have that request instead of its present drafter: one that is clearly better, or one that nobody
        knows yet and that has nothing to do."""
        present = self.state.drafters.of(request.drafter)
        if present is None or present.reserve or (request.rounds_with_drafter < STAY_ROUNDS and not request.resting):
            return None
        others = [drafter for drafter in self._able(request, now) if drafter is not present]
        for other in others:
            if not other.leases and self._unknown(request, other) and _differ(present, other):
                return other
        best = max(others, key=lambda d: self._gain(request, d), default=None)
        if best is None or self._unknown(request, best):
            return None
        clearly = 1 + self._gain(request, best) > CLEARLY * (1 + max(0.0, self._gain(request, present)))
        return best if clearly else None

    def _able(self, request: Request, now: float) -> list[DrafterPeer]:
        return [d for d in self.state.drafters.able(request, now) if self.state.worth_lending(request, d)]

    def _unknown(self, request: Request, drafter: DrafterPeer) -> bool:
        return drafter.standing(request).speedup.weight < LOOK

    def _gain(self, request: Request, drafter: DrafterPeer) -> float:
        """What it adds to each of the stream's tokens, with one lease more than it has, or with those that it has if
        the stream is one of them: a drafter that has more to do does less for each."""
        speedup = request.course(drafter.actor_id).expected(self.state.prior(request, drafter))
        streams = len(drafter.leases | {request.rid})
        steps = drafter.pace.steps
        return (speedup - 1.0) * steps(1) / steps(streams)


def _differ(one: DrafterPeer, other: DrafterPeer) -> bool:
    ratio = one.pace.step_us / other.pace.step_us
    return one.hello.model_id != other.hello.model_id or ratio > MIN_STEP or ratio * MIN_STEP < 1
