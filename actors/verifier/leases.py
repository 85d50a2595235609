"""Lends requests to drafters and takes them back. Each lease has its own epoch, which fences off all others.

A request without a drafter is offered again with every heartbeat, and at once when a drafter joins or has room again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from actors.verifier.drafters import DrafterPeer
from actors.verifier.plans import may_rest, plan_for
from actors.verifier.pool import Pool
from actors.verifier.shadow import Shadows
from actors.verifier.state import State
from actors.verifier.streams import Request
from protocols.messages import Close, Decline, Grow, Message, Open, Resync

log = logging.getLogger("duoactor.verifier")
Send = Callable[[bytes, Message], bool]
RETRY_S = 5.0  # a lease that found no room costs a message with the whole text, so it is not offered every heartbeat


class Leases:
    def __init__(self, state: State, send: Send) -> None:
        self.state = state
        self.send = send
        self.pool = Pool(state)
        self.shadows = Shadows(state, self.pool, send, self._improve)

    def lend(self, request: Request, now: float, to: DrafterPeer | None = None) -> bool:
        """Give the request to a drafter (the one that is best placed if None) under a new epoch."""
        spec = request.spec
        if not spec.strategy.drafter or not request.drafting or self._prompt_comes_first(request):
            return False
        drafter = to or self.pool.choose(request, now)
        if drafter is None or not drafter.takes(request, now):
            return False
        self.shadows.vacate(drafter, now)
        spec.lent(self.state.next_epoch(), plan_for(self.state, request, drafter, now))
        if not self.send(drafter.peer, self.opening(request)):
            spec.recalled()
            drafter.declined(request.rid, now + RETRY_S)
            return False
        drafter.lent(request.rid)
        request.lent(drafter.peer, drafter.actor_id)
        return True

    def opening(self, request: Request) -> Open:
        spec = request.spec
        spec.told()
        prefix, salt = tuple(spec.committed), request.message.cache_salt
        return Open(spec.rid, spec.epoch, prefix, spec.prompt_len, spec.sampling, spec.plan, salt)

    def recall(self, request: Request, now: float) -> None:
        """End the lease. What the drafter still sends is fenced off by the epoch."""
        drafter = self.state.drafters.of(request.drafter)
        if drafter is not None:
            self.send(drafter.peer, Close(request.rid, request.spec.epoch))
            drafter.returned(request.rid)
        self._without_drafter(request, now)

    def ended(self, request: Request, now: float) -> None:
        """The request is over; the room that it had at its drafter may be another's."""
        drafter = self.state.drafters.of(request.drafter)
        self.recall(request, now)
        self.state.drafters.forget(request.rid)
        if drafter is not None and drafter.has_room_again():
            self.offer(now)

    def move(self, old: DrafterPeer, new: DrafterPeer | None, now: float) -> int:
        """Every lease of ``old`` goes to ``new`` (to whoever is best placed if None, or if ``new`` does not take it);
        how many went where they should."""
        moved = 0
        self.shadows.vacate(old, now)
        for request in [r for r in self.state.requests if r.drafter == old.peer]:
            moved += self._hand_over(request, new, now)
        return moved

    def lose(self, drafter: DrafterPeer, now: float) -> None:
        """A drafter is gone: its requests go on with another, or alone."""
        self.shadows.vacate(drafter, now)
        self.state.drafters.remove(drafter.peer)
        for request in [r for r in self.state.requests if r.drafter == drafter.peer]:
            self._without_drafter(request, now)
            self.lend(request, now)

    def declined(self, request: Request, drafter: DrafterPeer, message: Decline, now: float) -> None:
        """The drafter does not hold the lease: nothing is expected of it, and another may be offered it."""
        drafter.returned(request.rid)
        _decline(drafter, message, now)
        self._without_drafter(request, now)
        self.lend(request, now)

    def shadowed(self, drafter: DrafterPeer, message: Grow | Resync | Decline, now: float) -> bool:
        """Whether that is about what it would have drafted beside another, and not about a lease."""
        if not self.shadows.heard(drafter, message, now):
            return False
        if isinstance(message, Decline):
            _decline(drafter, message, now)
        return True

    def outgrown(self, request: Request, drafter: DrafterPeer, now: float) -> bool:
        """Whether the text has become longer than its drafter can hold; the lease ends then."""
        if drafter.holds(len(request.spec.committed)):
            return False
        self.recall(request, now)
        self.lend(request, now)
        return True

    def offer(self, now: float) -> None:
        """Requests without a drafter are offered to those that take one, and others to a drafter that is better, or may
        turn out to be."""
        self.shadows.look(now)
        for request in self.state.requests:
            if request.drafter is None:
                self.lend(request, now)
            elif not self._improve(request, now):
                self.shadows.consider(request, now)

    def judge(self, request: Request, drafter: DrafterPeer, now: float) -> bool:
        """Whether its drafter loses; it is lent nothing of that method for a while then. A method that a user has named
        drafts, whatever that costs."""
        standing = drafter.standing(request)
        known = self.state.plain[request.method].known
        if not (known and standing.loses and may_rest(self.state, request)):
            return False
        log.info("%s slows %s down, and rests for %d rounds", drafter.actor_id, request.method, standing.rest)
        standing.pause()
        for other in [r for r in self.state.requests if r.drafter == drafter.peer and r.kind == request.kind]:
            self._hand_over(other, None, now)
        return True

    def _improve(self, request: Request, now: float) -> bool:
        """Move it, if another drafter is clearly better for it; whether it was moved."""
        better = self.pool.better(request, now)
        return better is not None and self._hand_over(request, better, now)

    def _hand_over(self, request: Request, to: DrafterPeer | None, now: float) -> bool:
        """To whoever is best placed if None, or if ``to`` does not take it; whether it went where it should."""
        self.recall(request, now)
        moved = self.lend(request, now, to)
        if request.drafter is None:
            self.lend(request, now)
        return moved

    def _prompt_comes_first(self, request: Request) -> bool:
        """While no drafter has work, the target computes a prompt on their CPUs too: a drafter that reads the prompt
        meanwhile makes the first token late, and has nothing to guess before it."""
        return request.state == "prefill" and self.state.cost.lends and self.state.drafters_idle

    def _without_drafter(self, request: Request, now: float) -> None:
        self.shadows.leave(request, now)
        request.lent(None)
        request.spec.recalled()


def _decline(drafter: DrafterPeer, message: Decline, now: float) -> None:
    drafter.declined(message.rid, math.inf if message.lasting else now + RETRY_S)
