"""Orders of operators and the controller: swap or drain drafters, set budgets, report the status."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from actors.cpus import own_cpus
from actors.settings import MAX_THREADS
from actors.verifier.admission import Admission
from actors.verifier.context import Context
from actors.verifier.drafter_status import drafter_status
from actors.verifier.drafters import DrafterPeer
from actors.verifier.learning import Learning
from actors.verifier.leases import Leases
from actors.verifier.sources.head import HeadSource
from protocols import messages
from protocols.errors import ModelError, RequestError
from protocols.limits import Mean, clipped, within
from protocols.messages import OWN_HEAD, Budget, Done, Drain, DrainActor, Failed, FailureCode, Status, Swap, Undo

log = logging.getLogger("duoactor.verifier")
METHODS = frozenset(messages.Method)


class Operations:
    def __init__(self, context: Context, leases: Leases, admission: Admission, learning: Learning) -> None:
        self.context, self.state = context, context.state
        self.leases, self.admission, self.learning = leases, admission, learning
        self._swaps = set[asyncio.Task[None]]()  # swaps of heads

    def order(self, peer: bytes, message: Swap | DrainActor | Undo) -> None:
        """Carry out an operator's order, and answer with Done or Failed and a sentence."""
        try:
            if not self.state.clients[peer].operates:
                detail = "this key is no operator's; make one with `duoactor keys NAME --role operator` for that"
                raise RequestError(FailureCode.FORBIDDEN, detail)
            match message:
                case Swap() if message.old == OWN_HEAD and self.state.drafters.named(OWN_HEAD) is None:
                    swap = asyncio.create_task(self._swap_head(peer, message))
                    self._swaps.add(swap)
                    swap.add_done_callback(self._swaps.discard)
                    return
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
        self.context.trials.forget(new.source)
        return f"moved {_streams(self.leases.move(old, new))} from {old.actor_id} to {new.actor_id}"

    async def _swap_head(self, peer: bytes, message: Swap) -> None:
        """Answer once the other head drafts, or why it does not."""
        head = self.context.equipment.inline
        try:
            if not isinstance(head, HeadSource):
                raise ModelError("this verifier drafts with no head: start it with one, by --draft or --inline-draft")
            done = await head.swap(message.new)
        except Exception as error:  # whatever is wrong with that head, the one in service goes on
            log.warning("the head stays: %s", error)
            self.context.send(peer, Failed(message.rid, FailureCode.BAD_REQUEST, clipped(str(error))))
        else:
            self.context.trials.forget(head.name)
            self.context.send(peer, Done(message.rid, clipped(done)))

    def _drain(self, message: DrainActor) -> str:
        drafter = self._named(message.actor_id)
        drafter.leave()
        moved = self.leases.move(drafter, None)
        self.context.send(drafter.peer, Drain())
        return f"{drafter.actor_id} is leaving; {_streams(moved)} moved"

    def _named(self, actor_id: str) -> DrafterPeer:
        drafter = self.state.drafters.named(actor_id)
        if drafter is None:
            detail = (
                f"no drafter is named {actor_id}; connected are: {self.state.drafters.names()}; one that has just been "
                "started connects once it has loaded its model, and says so"
            )
            raise RequestError(FailureCode.NOT_FOUND, detail)
        return drafter

    def budget(self, peer: bytes, message: Budget) -> None:
        """The controller's. Budgets for methods that this version does not know are counted and dropped."""
        if message.kind.method and message.kind.method not in METHODS:
            self.state.counters["fenced_budget"] += 1
            return
        self.state.budgets.file(message, self.context.clock())
        self.context.publish(message)

    def status(self, peer: bytes, message: Status) -> None:
        context, state, now = self.context, self.state, self.context.clock()
        report = messages.StatusReport(
            rid=message.rid,
            method=context.settings.method,
            uptime_ms=(now - state.started) * 1000,
            target=self._target(),
            verifier=messages.ActorStatus(context.settings.actor_id, socket.gethostname(), os.getpid()),
            requests=self.admission.status(state.clients[peer]),
            drafters=tuple(
                drafter_status(drafter, state.promoted, context.trials, state.totals)
                for drafter in state.drafters.by_peer.values()
            ),
            controller=state.controller.report() if state.controller is not None else None,
            learner=state.learner.report() if state.learner is not None else None,
            inline=inline.status() if (inline := context.equipment.inline) is not None else None,
            budgets=state.budgets.said(now),
            totals=state.totals.report(),
            counters=dict(state.counters),
            left_out=clipped(context.equipment.left_out),
        )
        self.context.send(peer, report)

    def _target(self) -> messages.TargetStatus:
        settings, target, info = self.context.settings, self.context.target, self.context.info
        on_cpu = info.device == "cpu"
        return messages.TargetStatus(
            model_id=info.model_id,
            device=info.device,
            dtype=info.dtype,
            kv_slots=target.kv_slots,
            kv_used=target.kv_used,
            kv_cached=target.kv_cached,
            rows_agree=target.rows_agree,
            branches=target.branches,
            threads=(settings.threads or min(MAX_THREADS, own_cpus())) if on_cpu else 0,
            cpus=settings.cpus if on_cpu else "",
            spare_cpus=settings.spare_cpus if self.context.price.target.lends else "",
            tokens_per_second=within(1e6 / self.context.price.plain(1), Mean),
            sampling=info.sampling,
            reading=info.reading,
        )


def _streams(count: int) -> str:
    return f"{count} stream{'s' * (count != 1)}"
