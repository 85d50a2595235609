"""What the verifier does with each message that arrives. Nothing here waits or computes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

from actors.cost import CostModel
from actors.models import Codec
from actors.verifier.admission import admit
from actors.verifier.book import HEARTBEAT_MS, TTL_MS, Book, ClientPeer
from actors.verifier.leases import Leases
from actors.verifier.request import Request
from actors.verifier.texts import Texts
from protocols import wire
from protocols.errors import ProtocolError, RequestError
from protocols.messages import (
    ActorDown,
    ActorUp,
    Budget,
    Cancel,
    Decline,
    Detokenize,
    Done,
    DraftStats,
    Drain,
    DrainActor,
    Failed,
    FailureCode,
    Generate,
    Goodbye,
    Grow,
    Heartbeat,
    Hello,
    Message,
    Refuse,
    RefuseCode,
    Resync,
    Role,
    Status,
    StatusReport,
    Swap,
    Tokenize,
    ToVerifier,
    Welcome,
)

MAX_REQUESTS = 1024


class Reception:
    """Decodes, checks and files every message; what it learns goes into the book."""

    def __init__(
        self,
        book: Book,
        codec: Codec,
        leases: Leases,
        texts: Texts,
        send: Callable[[bytes, Message], bool],
        publish: Callable[[Message], None],
        clock: Callable[[], float],
        telemetry: str = "",
        kv: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.book, self.codec, self.leases, self.texts = book, codec, leases, texts
        self.send, self.publish, self.clock = send, publish, clock
        self.telemetry = telemetry
        self.kv = kv
        self.rows_agree: tuple[int, ...] = ()
        self.decoder = wire.Decoder(ToVerifier)

    def receive(self, peer: bytes, frames: Sequence[bytes]) -> None:
        try:
            message = self.decoder.decode(frames)
        except ProtocolError as error:
            self._malformed(peer, frames, str(error))
            return
        if not isinstance(message, Hello) and not self._known(peer):
            self.book.counters["unknown_peer"] += 1
            self.send(peer, Refuse(RefuseCode.UNKNOWN_PEER, "this verifier does not know you; say Hello first"))
            return
        self._seen(peer, message)
        match message:
            case Hello():
                self._hello(peer, message)
            case Grow():
                self._grow(peer, message)
            case Generate():
                self._generate(peer, message)
            case Cancel():
                self._cancel(peer, message)
            case Heartbeat():
                self.send(peer, message)
            case Goodbye():
                self.gone(peer, message.reason or "said goodbye")
            case Resync():
                self._resync(peer, message)
            case Decline():
                self._decline(peer, message)
            case DraftStats():
                self._draft_stats(peer, message)
            case Budget():
                self._budget(peer, message)
            case Status():
                self.send(peer, self._report(message.rid))
            case Tokenize() | Detokenize():
                self.texts.ask(peer, message)
            case Swap():
                self._swap(peer, message)
            case DrainActor():
                self._drain(peer, message)

    def _malformed(self, peer: bytes, frames: Sequence[bytes], why: str) -> None:
        """Counted, dropped and answered: whoever waits for an answer must not wait for ever."""
        self.book.counters["malformed"] += 1
        if not self._known(peer):
            self.send(peer, Refuse(RefuseCode.VERSION if wire.is_foreign(frames) else RefuseCode.MALFORMED, why))
        elif peer in self.book.clients and (rid := wire.request_id(frames)) is not None:
            request = self.book.requests.get(rid)
            if request is not None and request.client == peer:
                self.end(request)  # nothing about it may come behind Failed
            self.send(peer, Failed(rid, FailureCode.BAD_REQUEST, why))
        else:
            self.send(peer, Refuse(RefuseCode.MALFORMED, why))

    # --- peers -------------------------------------------------------------------------------------------------------

    def _known(self, peer: bytes) -> bool:
        return peer in self.book.clients or peer in self.book.drafters.by_peer or peer == self.book.controller

    def _seen(self, peer: bytes, message: Message) -> None:
        now = self.clock()
        if (client := self.book.clients.get(peer)) is not None:
            client.last_seen = now
        elif (drafter := self.book.drafters.by_peer.get(peer)) is not None:
            drafter.heard(now, message.busy_ms / 1000 if isinstance(message, Heartbeat) else 0.0)

    def _hello(self, peer: bytes, hello: Hello) -> None:
        """The preflight: what does not fit is said here, not found out later as a poor acceptance rate."""
        now = self.clock()
        refusal = self._misfit(hello)
        if refusal is not None:
            self.book.counters["refused"] += 1
            self.send(peer, refusal)
            return
        self._welcome(peer)
        match hello.role:
            case Role.DRAFTER:
                for stale in (self.book.drafters.named(hello.actor_id), self.book.drafters.of(peer)):
                    if stale is not None:
                        self.leases.lose(stale, now)  # the same actor, restarted or reconnected
                self.book.drafters.add(peer, hello, now)
                self.leases.offer(now)
            case Role.CONTROLLER:
                self.book.controller, self.book.controller_id = peer, hello.actor_id
                self.book.controller_pid = hello.pid
            case _:
                self.book.clients[peer] = ClientPeer(hello.actor_id, now)
        if hello.role is not Role.CLIENT:
            self.publish(ActorUp(hello.role, hello.actor_id, hello.model_id))

    def _misfit(self, hello: Hello) -> Refuse | None:
        info = self.book.info
        if self.book.draining:
            return Refuse(RefuseCode.DRAINING, "this verifier is shutting down; connect to another")
        if hello.role is not Role.DRAFTER:
            return None
        retrieves = not hello.tokenizer_digest and not hello.vocab_size  # copies the ids it is sent, whatever they mean
        if not retrieves and hello.tokenizer_digest != info.tokenizer_digest:
            detail = (
                f"the tokenizer of draft model {hello.model_id} (vocabulary of {hello.vocab_size}) is not that of "
                f"target {info.model_id} (vocabulary of {info.vocab_size}); use a draft model of the same family"
            )
            return Refuse(RefuseCode.TOKENIZER, detail)
        named = self.book.drafters.named(hello.actor_id)
        if named is not None and named.hello.incarnation != hello.incarnation and self._alive(named.last_seen):
            detail = f"a drafter named {hello.actor_id} is connected already; choose another --actor-id"
            return Refuse(RefuseCode.DUPLICATE, detail)
        return None

    def _alive(self, last_seen: float) -> bool:
        return self.clock() - last_seen < 2 * HEARTBEAT_MS / 1000

    def _welcome(self, peer: bytes) -> None:
        book = self.book
        welcome = Welcome(
            book.incarnation,
            HEARTBEAT_MS,
            TTL_MS,
            self.telemetry,
            book.info.model_id,
            book.info.vocab_size,
            book.info.max_context,
            book.cost.calibration(),
        )
        self.send(peer, welcome)

    def gone(self, peer: bytes, reason: str) -> None:
        """A peer left, or is not heard of any more."""
        book, now = self.book, self.clock()
        if (drafter := book.drafters.by_peer.get(peer)) is not None:
            self.leases.lose(drafter, now)
            self.publish(ActorDown(Role.DRAFTER, drafter.actor_id, reason))
        elif peer == book.controller:
            self.publish(ActorDown(Role.CONTROLLER, book.controller_id, reason))
            book.controller = None
        elif book.clients.pop(peer, None) is not None:
            for request in book.requests:
                if request.client == peer:
                    self.end(request)

    # --- requests ----------------------------------------------------------------------------------------------------

    def end(self, request: Request) -> None:
        """Once; ending it again does nothing."""
        if request.state != "ended":
            self.book.requests.end(request)
            self.leases.ended(request, self.clock())

    def fail(self, request: Request, code: FailureCode, detail: str) -> None:
        if request.state != "ended":
            self.send(request.client, Failed(request.rid, code, detail))
            self.end(request)

    def _generate(self, peer: bytes, message: Generate) -> None:
        try:
            self._make_way(peer, message)
            request = admit(self.book, self.codec, peer, message, self.clock())
        except RequestError as error:
            self.book.counters["bad_requests"] += 1
            self.send(peer, Failed(message.rid, FailureCode(error.code), str(error)))
            return
        self.book.requests.add(request)

    def _make_way(self, peer: bytes, message: Generate) -> None:
        """End the stream that this one resumes; RequestError while nothing can be let in under that id."""
        book = self.book
        if book.draining:
            raise RequestError(FailureCode.DRAINING, "this verifier is shutting down; send the request to another")
        if len(book.requests) >= MAX_REQUESTS:
            raise RequestError(FailureCode.OVERLOADED, f"{MAX_REQUESTS} requests are open already; try again later")
        if (old := book.requests.get(message.rid)) is not None:
            holder, asker = book.clients.get(old.client), book.clients.get(peer)
            if holder is not None and asker is not None and holder.actor_id != asker.actor_id:
                raise RequestError(FailureCode.BAD_REQUEST, f"request id {message.rid!r} is in use by another client")
            self.end(old)

    def _cancel(self, peer: bytes, message: Cancel) -> None:
        request = self.book.requests.get(message.rid)
        if request is not None and request.client == peer:
            self.end(request)

    # --- drafters ----------------------------------------------------------------------------------------------------

    def _grow(self, peer: bytes, message: Grow) -> None:
        request = self.book.requests.get(message.rid)
        if request is None or request.drafter != peer:
            self._fence(peer, "lease")
            return
        self._date_forwards(peer, request, message)
        reason = request.spec.grow(message)
        if reason is not None:
            self._fence(peer, reason)

    def _date_forwards(self, peer: bytes, request: Request, message: Grow) -> None:
        """The drafter's times are told by its clock, and published by ours."""
        drafter = self.book.drafters.of(peer)
        if drafter is None or not 0.0 <= message.sent_us < math.inf:
            return
        drafter.clock.heard(message.sent_us, (self.clock() - self.book.started) * 1e6)
        sent = drafter.clock.own(message.sent_us)
        request.spec.drafted([(round(sent - age), length) for age, length in message.forwards])

    def _fence(self, peer: bytes, reason: str) -> None:
        self.book.counters[f"fenced_{reason}"] += 1
        if (drafter := self.book.drafters.by_peer.get(peer)) is not None:
            drafter.dropped += 1

    def _resync(self, peer: bytes, message: Resync) -> None:
        request = self.book.requests.get(message.rid)
        if request is None or request.drafter != peer or request.spec.epoch != message.epoch:
            self._fence(peer, "lease")
            return
        missed = request.spec.missed(message.have_len)
        self.send(peer, missed if missed is not None else self.leases.opening(request))

    def _decline(self, peer: bytes, message: Decline) -> None:
        request, drafter = self.book.requests.get(message.rid), self.book.drafters.of(peer)
        if drafter is None or request is None or request.drafter != peer or request.spec.epoch != message.epoch:
            self._fence(peer, "lease")
            return
        self.leases.declined(request, drafter, message, self.clock())

    def _draft_stats(self, peer: bytes, message: DraftStats) -> None:
        drafter = self.book.drafters.by_peer.get(peer)
        if drafter is not None and message.step_us:
            drafter.pace.steps = CostModel(dict(message.step_us))
            self.publish(message)

    def _swap(self, peer: bytes, message: Swap) -> None:
        drafters = self.book.drafters
        old, new = drafters.named(message.old), drafters.named(message.new)
        missing = message.old if old is None else message.new
        if old is None or new is None:
            detail = f"no drafter is named {missing}; connected are: {drafters.names()}"
            self.send(peer, Failed(message.rid, FailureCode.NOT_FOUND, detail))
            return
        if old is new:
            self.send(peer, Failed(message.rid, FailureCode.BAD_REQUEST, "OLD and NEW are the same drafter"))
            return
        drafters.swap(old, new)
        moved = self.leases.move(old, new, self.clock())
        self.send(peer, Done(message.rid, f"moved {moved} streams from {old.actor_id} to {new.actor_id}"))

    def _drain(self, peer: bytes, message: DrainActor) -> None:
        drafter = self.book.drafters.named(message.actor_id)
        if drafter is None:
            detail = f"no drafter is named {message.actor_id}; connected are: {self.book.drafters.names()}"
            self.send(peer, Failed(message.rid, FailureCode.NOT_FOUND, detail))
            return
        drafter.draining = True
        moved = self.leases.move(drafter, None, self.clock())
        self.send(drafter.peer, Drain())
        self.send(peer, Done(message.rid, f"{drafter.actor_id} is leaving; {moved} streams moved"))

    def _budget(self, peer: bytes, message: Budget) -> None:
        if peer != self.book.controller:
            self._fence(peer, "budget")
            return
        self.book.budgets.file(message, self.clock())
        self.publish(message)

    def _report(self, rid: str) -> StatusReport:
        book, now = self.book, self.clock()
        total, used = self.kv()
        return StatusReport(
            rid,
            model_id=book.info.model_id,
            device=book.info.device,
            dtype=book.info.dtype,
            method=book.settings.method,
            uptime_ms=(now - book.started) * 1000,
            kv_slots=total,
            kv_used=used,
            requests=tuple(r.status() for r in book.requests),
            drafters=tuple(d.status(now) for d in book.drafters.by_peer.values()),
            controller=book.controller_id if book.controller is not None else "",
            budgets=book.budgets.said(now),
            counters=dict(book.counters),
            rows_agree=self.rows_agree,
            pid=os.getpid(),
            totals=book.totals.report(),
            controller_pid=book.controller_pid if book.controller is not None else 0,
        )
