"""Admits requests, or refuses them with a sentence, and ends them.

Long texts are tokenized on a thread of their own, so that they delay no other stream's round.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from actors.methods import strategy_for
from actors.tree.tree import TokenTree
from actors.verifier.budgets import first_plan
from actors.verifier.context import Context
from actors.verifier.drafters import Peer
from actors.verifier.leases import Leases
from actors.verifier.loans import Loan
from actors.verifier.owners import EVERYBODY, Owner
from actors.verifier.preparation import Prepared, is_short, prepare
from actors.verifier.sources.grammar import Grammars
from actors.verifier.streams import Delivery, Stage, Stream, Times
from actors.verifier.trace import Trace
from actors.verifier.waits import Wait
from protocols.errors import RequestError
from protocols.limits import MAX_REQUESTS, clipped
from protocols.messages import Cancel, Failed, FailureCode, Generate, RequestStatus
from protocols.validation import validate

log = logging.getLogger("duoactor.verifier")
FULL = "as many requests wait as this verifier lets wait; try again later"
LEAVING = "the verifier is shutting down; the stream can resume"
DECODED = 1 << 14  # groups of a few tokens with cached text, some 3 MB: words repeat
PACE = 16  # latest ends of requests from which it is predicted when there will be room
DEFAULT_RETRY_MS, MIN_RETRY_MS, MAX_RETRY_MS = 1000.0, 100.0, 60_000.0
MAX_ATTEMPTS = 5  # twice in company, then alone: a request during which the verifier crashed so often is the cause


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request in preparation: its text is being tokenized, its grammar compiled."""

    client: bytes
    message: Generate
    arrived: float  # seconds
    owner: Owner  # known now: the client may be gone when the request ends


class Admission:
    def __init__(self, context: Context, leases: Leases, grammars: Grammars) -> None:
        self.context, self.state, self.leases, self.grammars = context, context.state, leases, grammars
        self.send, self.clock, codec = context.send, context.clock, context.equipment.codec
        cached = lru_cache(DECODED)
        self._decoders = {skip: cached(partial(codec.decode, skip_special_tokens=skip)) for skip in (False, True)}
        self._arriving: dict[str, Arrival] = {}
        self._preparing = 0  # requests whose preparation is not over, cancelled ones included
        self._ends: deque[float] = deque(maxlen=PACE)

    # --- admit -------------------------------------------------------------------------------------------------------

    def ask(self, peer: bytes, message: Generate) -> None:
        """A client asks for a generation: check it, tokenize it, and queue it; or refuse it."""
        owner = Owner(self.state.clients[peer].holder.key, message.cache_salt)
        arrival = Arrival(peer, message, self.clock(), owner)
        try:
            self._make_way(arrival)
            strategy_for(message.method or self.context.settings.method)
            validate(message, self.context.info.vocab_size)
        except RequestError as error:
            self._refuse(arrival, error)
            return
        self._arriving[message.rid] = arrival
        self._preparing += 1
        job = partial(self._prepare, arrival)
        if is_short(message):  # it must not wait for a long one
            self._prepared(arrival, job)
        else:
            prepared = self.context.equipment.tokenizing.start(job)
            prepared.add_done_callback(lambda done: self._prepared(arrival, done.result))

    def _prepare(self, arrival: Arrival) -> Prepared | None:
        """On any thread. None: nobody asks for it any more. Raises as :func:`prepare` does."""
        if not self._arrives(arrival):
            return None
        message, equipment = arrival.message, self.context.equipment
        decode = self._decoders[message.sampling.skip_special_tokens]
        return prepare(equipment.codec, decode, equipment.model.info, self.grammars, message)

    def _arrives(self, arrival: Arrival) -> bool:
        """Whether it was neither cancelled nor asked for again."""
        return self._arriving.get(arrival.message.rid) is arrival

    def _make_way(self, arrival: Arrival) -> None:
        """End the request that this one resumes, if there is one. Raises RequestError if it cannot be admitted now."""
        state, message = self.state, arrival.message
        if state.draining:
            raise RequestError(FailureCode.DRAINING, "this verifier is shutting down; send the request to another")
        if message.attempt >= MAX_ATTEMPTS:
            detail = (
                f"the verifier ended {message.attempt} times while it worked on this request: it is not tried again"
            )
            raise RequestError(FailureCode.INTERNAL, detail)
        old = state.requests.get(message.rid) or self._arriving.get(message.rid)
        if old is not None:
            holder, asker = state.clients.get(old.client), state.clients[arrival.client]
            if holder is not None and not holder.same_as(asker):
                raise RequestError(FailureCode.BAD_REQUEST, f"request id {message.rid!r} is in use by another client")
            self.drop(message.rid, old.client)
        self._check_queue(arrival)

    def _check_queue(self, arrival: Arrival) -> None:
        """Raise RequestError if the queue is full. The new request takes the place of one of the same owner that has
        not begun and has a higher ``priority`` number, which fails."""
        most, waiting = self.context.settings.max_queued_requests, self.state.requests.of(Stage.QUEUED)
        if len(self.state.requests) + self._preparing < MAX_REQUESTS and len(waiting) + self._preparing < most:
            return
        own = [s for s in waiting if not s.times.first_at and s.owner == arrival.owner]
        last = self.state.in_order(own)[-1] if own else None
        if last is None or last.message.priority <= arrival.message.priority:
            raise RequestError(FailureCode.OVERLOADED, FULL, self._retry_after_ms())
        self.fail(last, FailureCode.OVERLOADED, FULL, self._retry_after_ms())

    def _retry_after_ms(self) -> float:
        """When there should be room: the mean time between the latest ends of requests."""
        ends = self._ends
        pace_ms = 1000 * (self.clock() - ends[0]) / len(ends) if ends else DEFAULT_RETRY_MS
        return min(max(pace_ms, MIN_RETRY_MS), MAX_RETRY_MS)

    def _prepared(self, arrival: Arrival, result: Callable[[], Prepared | None]) -> None:
        """``result``: what :meth:`_prepare` gives or raises."""
        self._preparing -= 1
        if not self._arrives(arrival):
            with contextlib.suppress(Exception, asyncio.CancelledError):
                result()  # retrieved, so that asyncio does not log it
            return
        try:
            prepared = result()
            assert prepared is not None
            self.state.requests.add(self._stream(arrival, prepared))
        except RequestError as error:
            self._refuse(arrival, error)
        except asyncio.CancelledError:
            self._refuse(arrival, RequestError(FailureCode.DRAINING, "this verifier is shutting down"))
        except Exception as error:  # the tokenizer's or a grammar's: no reason to end the verifier
            log.warning("request %s cannot be prepared", arrival.message.rid, exc_info=True)
            self._refuse(arrival, RequestError(FailureCode.INTERNAL, f"this request cannot be prepared: {error}"))
        del self._arriving[arrival.message.rid]
        self.context.wake()

    def _stream(self, arrival: Arrival, prepared: Prepared) -> Stream:
        message, text = arrival.message, prepared.text
        strategy = strategy_for(message.method or self.context.settings.method)
        self.context.library.check(strategy.method)
        most = min(self.context.target.max_window, strategy.nodes)
        return Stream(
            client=arrival.client,
            message=message,
            strategy=strategy,
            text=text,
            output=prepared.output,
            tree=TokenTree(len(text), text.committed[-1], self.context.info.vocab_size),
            loan=Loan(first_plan(self.context, strategy, message)),
            wait=Wait(strategy.waits, most),
            times=Times(arrival.arrived),
            delivery=Delivery(text.generated, Trace() if message.trace else None),
            grammar=prepared.grammar,
            prediction=prepared.prediction,
            owner=arrival.owner,
            scope=arrival.owner.scope(self.context.settings.share_texts),
        )

    def _refuse(self, arrival: Arrival, error: RequestError) -> None:
        self.state.counters["bad_requests"] += 1
        failed = Failed(arrival.message.rid, FailureCode(error.code), clipped(str(error)), error.retry_after_ms)
        self.send(arrival.client, failed)

    # --- end ---------------------------------------------------------------------------------------------------------

    def end(self, stream: Stream) -> None:
        """End a stream, unless it has ended. Its room is given back later, see :meth:`Streams.take_ended`."""
        if stream.status is Stage.ENDED:
            return
        self._log(stream)
        self.state.requests.end(stream)
        self.leases.ended(stream)
        if stream.handle >= 0:
            self._ends.append(self.clock())

    def _log(self, stream: Stream) -> None:
        """For ``--log-requests``. Texts of an owner are left out, because they must not serve others, and
        requests with a grammar, because forced tokens say nothing of the drafts."""
        counters, to = self.state.counters, self.context.equipment.request_log
        if to is None or stream.output.finish is None or stream.grammar is not None:
            return
        if stream.scope != EVERYBODY:
            counters["requests_of_owners_not_logged"] += 1
        else:
            to.add(stream.logged(self.context.info.model_id, self.context.info.tokenizer_digest))
        if to.lost:
            counters["requests_not_logged"] = to.lost

    def fail(self, stream: Stream, code: FailureCode, detail: str, retry_after_ms: float = 0.0) -> None:
        """End a request with a Failed message, after the tokens that were committed."""
        if stream.status is not Stage.ENDED:
            self._send_rest(stream)
            self.send(stream.client, Failed(stream.rid, code, clipped(detail), retry_after_ms))
            self.end(stream)

    def _send_rest(self, stream: Stream) -> None:
        """Send what is held back for the next chunk. The request fails already, perhaps because its text raises."""
        if stream.delivery.unsent:
            with contextlib.suppress(Exception):
                chunk = stream.chunk(self.clock())
                self.state.totals.sent(chunk)
                self.send(stream.client, chunk)

    def expire(self) -> None:
        """Fail the requests with a deadline that has passed."""
        for stream in self.state.requests.overdue(self.clock()):
            late = f"the answer was not complete within the deadline of {stream.message.deadline_ms:g} ms"
            self.fail(stream, FailureCode.DEADLINE_EXCEEDED, f"{late}; allow more time or ask for fewer tokens")

    def drop(self, rid: str, client: bytes) -> None:
        """End a client's request without telling it anything: it has cancelled it, or is gone."""
        if (arrival := self._arriving.get(rid)) is not None and arrival.client == client:
            del self._arriving[rid]
        if (stream := self.state.requests.get(rid)) is not None and stream.client == client:
            self.end(stream)

    def cancel(self, client: bytes, message: Cancel) -> None:
        self.drop(message.rid, client)

    def client_gone(self, client: bytes) -> None:
        for rid in [*self._arriving, *(request.rid for request in self.state.requests)]:
            self.drop(rid, client)

    def finish(self) -> None:
        """The verifier is about to shut down: admit nothing more, and fail what has not begun."""
        self.state.draining = True
        for request in self.state.requests.of(Stage.QUEUED):
            self.fail(request, FailureCode.DRAINING, LEAVING)
        for arrival in self._arriving.values():
            self.send(arrival.client, Failed(arrival.message.rid, FailureCode.DRAINING, LEAVING))
        self._arriving.clear()

    def close(self) -> None:
        """The verifier shuts down: fail every open request, which its client can resume at the next verifier."""
        self.finish()
        for request in self.state.requests:
            self.fail(request, FailureCode.DRAINING, LEAVING)

    def status(self, asker: Peer) -> tuple[RequestStatus, ...]:
        """The open requests that ``asker`` may see: an operator all, others those of their own key."""
        clients = self.state.clients

        def visible(client: bytes) -> bool:
            return asker.operates or (client in clients and clients[client].holder.key == asker.holder.key)

        arriving = (
            RequestStatus(rid, one.message.method or self.context.settings.method, "queued", 0)
            for rid, one in self._arriving.items()
            if visible(one.client)
        )
        return (*(request.report() for request in self.state.requests if visible(request.client)), *arriving)
