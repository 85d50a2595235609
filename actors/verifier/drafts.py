"""Files what drafters send. What does not belong to a lease that the sender holds now is counted and dropped."""

from __future__ import annotations

from collections.abc import Callable

from actors.cost import CostModel
from actors.verifier.book import Book
from actors.verifier.drafters import DrafterPeer
from actors.verifier.leases import Leases
from actors.verifier.request import Request
from protocols.messages import Decline, DraftStats, Grow, Message, Resync


class Drafts:
    def __init__(
        self,
        book: Book,
        leases: Leases,
        send: Callable[[bytes, Message], bool],
        publish: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self.book, self.leases = book, leases
        self.send, self.publish, self.clock = send, publish, clock

    def grow(self, peer: bytes, message: Grow) -> None:
        drafter = self.book.drafters.by_peer[peer]
        request = self._lent(peer, message)
        if request is None:
            self._fence(drafter, "lease")
            return
        arrived_us = (self.clock() - self.book.started) * 1e6
        request.spec.drafted(drafter.dated(message, arrived_us))
        reason = request.spec.grow(message)
        if reason is not None:
            self._fence(drafter, reason)

    def resync(self, peer: bytes, message: Resync) -> None:
        request = self._lent(peer, message)
        if request is None:
            self._fence(self.book.drafters.by_peer[peer], "lease")
            return
        missed = request.spec.missed(message.have_len)
        self.send(peer, missed if missed is not None else self.leases.opening(request))

    def decline(self, peer: bytes, message: Decline) -> None:
        drafter = self.book.drafters.by_peer[peer]
        request = self._lent(peer, message)
        if request is None:
            self._fence(drafter, "lease")
            return
        self.leases.declined(request, drafter, message, self.clock())

    def stats(self, peer: bytes, message: DraftStats) -> None:
        drafter = self.book.drafters.by_peer[peer]
        if message.actor_id != drafter.actor_id:
            self._fence(drafter, "name")
        elif message.step_us:
            drafter.pace.steps = CostModel(dict(message.step_us))
            self.publish(message)

    def _lent(self, peer: bytes, message: Grow | Resync | Decline) -> Request | None:
        """The request, if the sender holds its lease under the message's epoch."""
        request = self.book.requests.get(message.rid)
        if request is None or request.drafter != peer or request.spec.epoch != message.epoch:
            return None
        return request

    def _fence(self, drafter: DrafterPeer, reason: str) -> None:
        self.book.counters[f"fenced_{reason}"] += 1
        drafter.dropped += 1
