"""What operators and the controller ask of the verifier: swap or drain drafters, set budgets, report the status."""

from __future__ import annotations

import os
import socket

from actors.methods import strategy_for
from actors.process import own_cpus
from actors.settings import MAX_THREADS
from actors.verifier.admission import Admission
from actors.verifier.context import Context
from actors.verifier.drafters import DrafterPeer
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.price import USUAL_AGREEMENT
from actors.verifier.rounds import Group
from protocols.errors import RequestError
from protocols.limits import Mean, within
from protocols.messages import (
    Budget,
    Done,
    Drain,
    DrainActor,
    Expectation,
    Failed,
    FailureCode,
    Method,
    Status,
    StatusReport,
    Swap,
    Undo,
)

METHODS = frozenset(Method)


class Operations:
    def __init__(self, context: Context, leases: Leases, admission: Admission, learning: Learning) -> None:
        self.context, self.state = context, context.state
        self.leases, self.admission, self.learning = leases, admission, learning

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
            self.context.send(peer, Failed(message.rid, FailureCode(error.code), str(error)))
        else:
            self.context.send(peer, Done(message.rid, done))

    def _swap(self, message: Swap) -> str:
        old, new = self._named(message.old), self._named(message.new)
        if old is new:
            raise RequestError(FailureCode.BAD_REQUEST, "OLD and NEW are the same drafter")
        self.state.drafters.swap(old, new)
        self.context.trials.pardon(new.source)
        return f"moved {_streams(self.leases.move(old, new))} from {old.actor_id} to {new.actor_id}"

    def _drain(self, message: DrainActor) -> str:
        drafter = self._named(message.actor_id)
        drafter.leave()
        moved = self.leases.move(drafter, None)
        self.context.send(drafter.peer, Drain())
        return f"{drafter.actor_id} is leaving; {_streams(moved)} moved"

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
        self.state.budgets.file(message, self.context.clock())
        self.context.publish(message)

    def status(self, peer: bytes, message: Status) -> None:
        context, state, now = self.context, self.state, self.context.clock()
        info, target, inline = context.info, context.target, state.inline
        report = StatusReport(
            message.rid,
            model_id=info.model_id,
            device=info.device,
            dtype=info.dtype,
            method=context.settings.method,
            uptime_ms=(now - state.started) * 1000,
            kv_slots=target.kv_slots,
            kv_used=target.kv_used,
            requests=self.admission.status(state.clients[peer]),
            drafters=tuple(d.status(state.promoted, context.trials) for d in state.drafters.by_peer.values()),
            controller=state.controller.actor_id if state.controller is not None else "",
            budgets=state.budgets.said(now),
            counters=dict(state.counters),
            rows_agree=target.rows_agree,
            pid=os.getpid(),
            totals=state.totals.report(),
            controller_pid=state.controller.hello.pid if state.controller is not None else 0,
            host=socket.gethostname(),
            controller_host=state.controller.hello.host if state.controller is not None else "",
            kv_cached=target.kv_cached,
            learner=state.learner.actor_id if state.learner is not None else "",
            learner_pid=state.learner.hello.pid if state.learner is not None else 0,
            branches=target.branches,
            inline_draft=inline.model_id if inline is not None else "",
            inline_version=inline.generations.current.source.version if inline is not None else 0,
            inline_trouble=inline.generations.trouble if inline is not None else "",
            expected=self._expectation(),
        )
        self.context.send(peer, report)

    def _expectation(self) -> Expectation:
        """What a single stream of the default method may expect: plain decoding as measured, times the gain of the
        source that should gain most."""
        context, settings = self.context, self.context.settings
        strategy, on_cpu = strategy_for(settings.method), context.info.device == "cpu"
        able = {d.actor_id: d.source for d in self.state.drafters.by_peer.values() if not d.draining}
        sources = able if strategy.drafter else {}
        if self.state.inline is not None and "inline" in strategy.sources:
            sources = {settings.actor_id: "inline", **sources}
        group = Group(settings.method, False, 1)
        gains = {who: context.trials.expected(source, group) for who, source in sources.items()}
        drafts = max(gains, key=lambda who: gains[who], default="")
        plain = 1e6 / context.price.plain(1)
        return Expectation(
            threads=(settings.threads or min(MAX_THREADS, own_cpus())) if on_cpu else 0,
            cpus=settings.cpus if on_cpu else "",
            spare_cpus=settings.spare_cpus if context.price.target.lends else "",
            drafts=drafts,
            plain_tokens_per_second=within(plain, Mean),
            tokens_per_second=within(plain * gains.get(drafts, 0.0), Mean),
            agreement=USUAL_AGREEMENT if drafts else 0.0,
        )


def _streams(count: int) -> str:
    return f"{count} stream{'s' * (count != 1)}"
