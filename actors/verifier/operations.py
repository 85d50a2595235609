"""What operators and the controller ask for: which drafter works, how much is drafted, and how things stand."""

from __future__ import annotations

import os
from collections.abc import Callable

from actors.models import TargetModel
from actors.verifier.admission import Admission
from actors.verifier.book import Book
from actors.verifier.drafters import DrafterPeer
from actors.verifier.leases import Leases
from protocols.errors import RequestError
from protocols.messages import (
    Budget,
    Done,
    Drain,
    DrainActor,
    Failed,
    FailureCode,
    Message,
    Method,
    Status,
    StatusReport,
    Swap,
)

METHODS = frozenset(Method)


class Operations:
    def __init__(
        self,
        book: Book,
        model: TargetModel,
        leases: Leases,
        admission: Admission,
        send: Callable[[bytes, Message], bool],
        publish: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self.book, self.model, self.leases, self.admission = book, model, leases, admission
        self.send, self.publish, self.clock = send, publish, clock

    def swap(self, peer: bytes, message: Swap) -> None:
        try:
            old, new = self._named(message.old), self._named(message.new)
            if old is new:
                raise RequestError(FailureCode.BAD_REQUEST, "OLD and NEW are the same drafter")
        except RequestError as error:
            self.send(peer, Failed(message.rid, FailureCode(error.code), str(error)))
            return
        self.book.drafters.swap(old, new)
        moved = self.leases.move(old, new, self.clock())
        self.send(peer, Done(message.rid, f"moved {moved} streams from {old.actor_id} to {new.actor_id}"))

    def drain(self, peer: bytes, message: DrainActor) -> None:
        try:
            drafter = self._named(message.actor_id)
        except RequestError as error:
            self.send(peer, Failed(message.rid, FailureCode(error.code), str(error)))
            return
        drafter.draining = True
        moved = self.leases.move(drafter, None, self.clock())
        self.send(drafter.peer, Drain())
        self.send(peer, Done(message.rid, f"{drafter.actor_id} is leaving; {moved} streams moved"))

    def _named(self, actor_id: str) -> DrafterPeer:
        drafter = self.book.drafters.named(actor_id)
        if drafter is None:
            detail = f"no drafter is named {actor_id}; connected are: {self.book.drafters.names()}"
            raise RequestError(FailureCode.NOT_FOUND, detail)
        return drafter

    def budget(self, message: Budget) -> None:
        if message.method and message.method not in METHODS:
            self.book.counters["fenced_budget"] += 1
            return
        self.book.budgets.file(message, self.clock())
        self.publish(message)

    def status(self, peer: bytes, message: Status) -> None:
        book, now = self.book, self.clock()
        report = StatusReport(
            message.rid,
            model_id=book.info.model_id,
            device=book.info.device,
            dtype=book.info.dtype,
            method=book.settings.method,
            uptime_ms=(now - book.started) * 1000,
            kv_slots=self.model.kv_slots,
            kv_used=self.model.kv_used,
            requests=self.admission.status(),
            drafters=tuple(d.status(now) for d in book.drafters.by_peer.values()),
            controller=book.controller.actor_id if book.controller is not None else "",
            budgets=book.budgets.said(now),
            counters=dict(book.counters),
            rows_agree=self.model.rows_agree,
            pid=os.getpid(),
            totals=book.totals.report(),
            controller_pid=book.controller.hello.pid if book.controller is not None else 0,
        )
        self.send(peer, report)
