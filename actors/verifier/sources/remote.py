"""Files what drafters send. What does not belong to a lease that the sender holds now is counted and dropped."""

from __future__ import annotations

from collections.abc import Callable

from actors.verifier.drafters import DrafterPeer
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.state import State
from actors.verifier.streams import Request
from protocols.messages import Decline, DraftStats, Grow, Message, Resync


class Drafts:
    def __init__(
        self,
        state: State,
        leases: Leases,
        learning: Learning,
        send: Callable[[bytes, Message], bool],
        publish: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self.state, self.leases, self.learning = state, leases, learning
        self.send, self.publish, self.clock = send, publish, clock

    def grow(self, peer: bytes, message: Grow) -> None:
        drafter = self.state.drafters.by_peer[peer]
        request = self._lent(peer, message)
        if request is None:
            self._not_lent(drafter, message)
            return
        arrived_us = (self.clock() - self.state.started) * 1e6
        trust = drafter.standing(request).trust
        reason = request.spec.grow(message, drafter.dated(message, arrived_us), trust)
        if reason is not None:
            self._fence(drafter, reason)
        elif request.trace is not None:
            request.trace.grew(request.spec.tree, arrived_us)

    def resync(self, peer: bytes, message: Resync) -> None:
        request = self._lent(peer, message)
        if request is None:
            self._not_lent(self.state.drafters.by_peer[peer], message)
            return
        missed = request.spec.missed(message.have_len)
        self.send(peer, missed if missed is not None else self.leases.opening(request))

    def decline(self, peer: bytes, message: Decline) -> None:
        drafter = self.state.drafters.by_peer[peer]
        request = self._lent(peer, message)
        if request is None:
            self._not_lent(drafter, message)
            return
        self.leases.declined(request, drafter, message, self.clock())

    def stats(self, peer: bytes, message: DraftStats) -> None:
        drafter = self.state.drafters.by_peer[peer]
        if message.actor_id != drafter.actor_id:
            self._fence(drafter, "name")
        elif message.step_us:
            drafter.pace.measured(message.step_us)
            drafter.serves(message.version, message.trouble, message.path)
            self.learning.reported(drafter)
            self.publish(message)

    def _lent(self, peer: bytes, message: Grow | Resync | Decline) -> Request | None:
        """The request, if the sender holds its lease under the message's epoch."""
        request = self.state.requests.get(message.rid)
        if request is None or request.drafter != peer or request.spec.epoch != message.epoch:
            return None
        return request

    def _not_lent(self, drafter: DrafterPeer, message: Grow | Resync | Decline) -> None:
        """It is about what it would have drafted beside another, or about no lease of the sender's."""
        if not self.leases.shadowed(drafter, message, self.clock()):
            self._fence(drafter, "lease")

    def _fence(self, drafter: DrafterPeer, reason: str) -> None:
        self.state.counters[f"fenced_{reason}"] += 1
        drafter.fenced()
