"""What operators and the controller ask of the verifier: swap or drain drafters, set budgets, report the status."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from actors.models import TargetModel
from actors.verifier.admission import Admission
from actors.verifier.drafters import DrafterPeer
from actors.verifier.expectation import expectation
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.state import State
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
    Undo,
)

METHODS = frozenset(Method)


class Operations:
    def __init__(
        self,
        state: State,
        model: TargetModel,
        leases: Leases,
        admission: Admission,
        learning: Learning,
        send: Callable[[bytes, Message], bool],
        publish: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self.state, self.model, self.leases, self.admission = state, model, leases, admission
        self.learning = learning
        self.send, self.publish, self.clock = send, publish, clock

    def order(self, peer: bytes, message: Swap | DrainActor | Undo) -> None:
        """Carry out an operator's order, and answer with Done or Failed and a sentence."""
        try:
            if not self.state.clients[peer].operates:
                detail = "this key is no operator's; make one with `duoactor keys NAME --role operator` for that"
                raise RequestError(FailureCode.FORBIDDEN, detail)
            match message:
                case Swap():
                    done = self._swap(message)
                case DrainActor():
                    done = self._drain(message)
                case Undo():
                    done = self.learning.undo(message)
        except RequestError as error:
            self.send(peer, Failed(message.rid, FailureCode(error.code), str(error)))
        else:
            self.send(peer, Done(message.rid, done))

    def _swap(self, message: Swap) -> str:
        old, new = self._named(message.old), self._named(message.new)
        if old is new:
            raise RequestError(FailureCode.BAD_REQUEST, "OLD and NEW are the same drafter")
        self.state.drafters.swap(old, new)
        moved = self.leases.move(old, new, self.clock())
        return f"moved {moved} stream{'s' * (moved != 1)} from {old.actor_id} to {new.actor_id}"

    def _drain(self, message: DrainActor) -> str:
        drafter = self._named(message.actor_id)
        drafter.leave()
        moved = self.leases.move(drafter, None, self.clock())
        self.send(drafter.peer, Drain())
        return f"{drafter.actor_id} is leaving; {moved} streams moved"

    def _named(self, actor_id: str) -> DrafterPeer:
        drafter = self.state.drafters.named(actor_id)
        if drafter is None:
            detail = f"no drafter is named {actor_id}; connected are: {self.state.drafters.names()}"
            raise RequestError(FailureCode.NOT_FOUND, detail)
        return drafter

    def budget(self, message: Budget) -> None:
        """The controller's. Budgets for methods that this version does not know are counted and dropped."""
        if message.method and message.method not in METHODS:
            self.state.counters["fenced_budget"] += 1
            return
        self.state.budgets.file(message, self.clock())
        self.publish(message)

    def status(self, peer: bytes, message: Status) -> None:
        state, now = self.state, self.clock()
        inline = state.inline
        report = StatusReport(
            message.rid,
            model_id=state.info.model_id,
            device=state.info.device,
            dtype=state.info.dtype,
            method=state.settings.method,
            uptime_ms=(now - state.started) * 1000,
            kv_slots=self.model.kv_slots,
            kv_used=self.model.kv_used,
            requests=self.admission.status(state.clients[peer]),
            drafters=tuple(d.status(state.promoted) for d in state.drafters.by_peer.values()),
            controller=state.controller.actor_id if state.controller is not None else "",
            budgets=state.budgets.said(now),
            counters=dict(state.counters),
            rows_agree=self.model.rows_agree,
            pid=os.getpid(),
            totals=state.totals.report(),
            controller_pid=state.controller.hello.pid if state.controller is not None else 0,
            host=socket.gethostname(),
            controller_host=state.controller.hello.host if state.controller is not None else "",
            kv_cached=self.model.kv_cached,
            learner=state.learner.actor_id if state.learner is not None else "",
            learner_pid=state.learner.hello.pid if state.learner is not None else 0,
            branches=self.model.branches,
            inline_draft=inline.model_id if inline is not None else "",
            inline_version=inline.generations.current.source.version if inline is not None else 0,
            inline_trouble=inline.generations.trouble if inline is not None else "",
            expected=expectation(state),
        )
        self.send(peer, report)
