"""Leases requests to drafters and taking them back. Each lease has its own epoch, which fences off all others."""

from __future__ import annotations

from collections.abc import Callable

from actors.verifier.book import Book
from actors.verifier.drafters import DrafterPeer
from actors.verifier.request import Request
from protocols.messages import Close, Message, Open

Send = Callable[[bytes, Message], bool]


class Leases:
    def __init__(self, book: Book, send: Send) -> None:
        self.book = book
        self.send = send

    def lend(self, request: Request, drafter: DrafterPeer | None, now: float) -> bool:
        """Give the request to a drafter (the least burdened if None) under a new epoch."""
        if not request.spec.strategy.drafter or request.state == "ended":
            return False
        drafter = drafter or self.book.drafters.choose()
        if drafter is None:
            return False
        spec = request.spec
        spec.lent(self.book.next_epoch(), self.book.plan(spec.strategy, request.message, drafter.pace.step_us, now))
        if not self.send(drafter.peer, self.opening(request)):
            return False
        request.drafter = drafter.peer
        drafter.leases.add(request.rid)
        if drafter.actor_id not in request.drafters:
            request.drafters.append(drafter.actor_id)
        return True

    def opening(self, request: Request) -> Open:
        spec = request.spec
        spec.told()
        return Open(spec.rid, spec.epoch, tuple(spec.committed), spec.prompt_len, spec.sampling, spec.plan)

    def recall(self, request: Request) -> None:
        """End the lease. What the drafter still sends is fenced off by the epoch."""
        if request.drafter is None:
            return
        drafter = self.book.drafters.by_peer.get(request.drafter)
        if drafter is not None:
            drafter.leases.discard(request.rid)
            self.send(drafter.peer, Close(request.rid, request.spec.epoch))
        request.drafter = None
        request.spec.epoch = 0
        request.spec.wait_until = None

    def move(self, old: DrafterPeer, new: DrafterPeer | None, now: float) -> int:
        """Every lease of ``old`` goes to ``new``, or to whoever is least burdened; how many found a taker."""
        moved = 0
        for rid in list(old.leases):
            request = self.book.requests.get(rid)
            if request is None:
                old.leases.discard(rid)
                continue
            self.recall(request)
            moved += self.lend(request, new or self.book.drafters.choose(excluding=old.peer), now)
        return moved

    def lose(self, drafter: DrafterPeer, now: float) -> None:
        """A drafter is gone: its requests go on with another, or alone."""
        self.book.drafters.remove(drafter.peer)
        for rid in list(drafter.leases):
            request = self.book.requests.get(rid)
            if request is not None:
                request.drafter = None
                request.spec.epoch = 0
                request.spec.wait_until = None
                self.lend(request, None, now)

    def adopt_orphans(self, now: float) -> None:
        for request in self.book.requests.values():
            if request.drafter is None and request.state in ("prefill", "decode"):
                self.lend(request, None, now)
