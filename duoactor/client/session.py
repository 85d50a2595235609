"""The open calls of a client at one or several verifiers, as a state machine. No sockets, no clock.

Tokens are numbered: what comes twice is dropped, what is missing is requested again together with the tokens so far.
Noise is keyed by position, so the later text is the same (docs/how-it-works.md). So a stream survives its
verifier, and a verifier that is lost, full or about to leave is replaced by another.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from duoactor.client.verifiers import ONLY, Served, Verifiers
from protocols.errors import ConnectionLost, DuoactorError, RequestError
from protocols.handshake import Lost, Why
from protocols.messages import (
    Cancel,
    Chunk,
    Detokenize,
    Done,
    DrainActor,
    Failed,
    FailureCode,
    FinishReason,
    Generate,
    Message,
    Refuse,
    RefuseCode,
    Status,
    StatusReport,
    Swap,
    Tokenize,
    Tokenized,
    Undo,
    Welcome,
)

Question = Status | Swap | DrainActor | Undo | Tokenize | Detokenize
Answer = Done | StatusReport | Tokenized
News = Chunk | Answer | DuoactorError

ANSWERS: Mapping[type[Question], type[Answer]] = {
    Status: StatusReport,
    Tokenize: Tokenized,
    Detokenize: Tokenized,
    Swap: Done,
    DrainActor: Done,
    Undo: Done,
}

SETTLED_TOKENS = 16  # tokens that come from a verifier before it ends: the request is not taken for the cause then

log = logging.getLogger("duoactor.client")

BACKOFF_S = 0.5  # before the first repetition of a request that found no room, where the verifier did not say; doubles
MOST_DOUBLED = 5  # times: 16 s between two


@dataclass(slots=True)
class Call:
    """An open call: a stream, or a question, which may be repeated: a second swap or drain finds nothing to move."""

    request: Generate | Question
    since: float = 0.0  # seconds
    served: Served | None = None  # the model of a stream: no other may continue it; None: any
    at: str | None = None  # the address of the verifier; None: none yet
    submitted: bool = False  # whether that verifier was asked
    answered: bool = False  # it has begun to answer
    asked: str = ""  # incarnation of the verifier that was asked last, unless that one gave the request back
    refused_by: set[str] = field(default_factory=set)  # addresses that had no room
    retries: int = 0
    retry_at: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    attempt: int = 0  # see section 6.6 of SPEC.md: a request may be what ends the verifier
    begun: bool = False  # whether the verifier works on it, or may
    had: int = 0  # tokens when it was last asked for
    paused: bool = False  # its reader does not read, so that no verifier works on it
    was_paused: bool = False  # it may find no room when it goes on

    @property
    def is_stream(self) -> bool:
        return isinstance(self.request, Generate)

    def answered_by(self, answer: Answer) -> bool:
        """Whether it is an answer to this question at all."""
        whole = not isinstance(answer, Tokenized) or len(answer.pieces) == len(answer.token_ids)
        return whole and not isinstance(self.request, Generate) and isinstance(answer, ANSWERS[type(self.request)])

    def accept(self, chunk: Chunk) -> Chunk | None:
        """The new part of a chunk, or None if there is none. If tokens before it are missing, they are asked for."""
        have = len(self.token_ids)
        if not len(chunk.token_ids) == len(chunk.pieces) == len(chunk.accepted):
            return None  # no verifier of ours says so
        if chunk.offset > have:
            self.submitted = False
            return None
        self.answered = self.begun = True
        known = have - chunk.offset
        if known >= len(chunk.token_ids) and chunk.finish_reason is None:
            return None
        if known:
            chunk = replace(
                chunk,
                offset=have,
                token_ids=chunk.token_ids[known:],
                pieces=chunk.pieces[known:],
                accepted=chunk.accepted[known:],
                logprobs=chunk.logprobs[known:],
                trace=None,  # it is of more tokens
            )
        self.token_ids.extend(chunk.token_ids)
        self.finish_reason = chunk.finish_reason
        return chunk

    @property
    def deadline(self) -> float:
        within_ms = self.request.deadline_ms if isinstance(self.request, Generate) else 0.0
        return self.since + within_ms / 1000 if within_ms else math.inf

    def message(self, now: float) -> Generate | Question:
        """The question, or the request for what is still to come."""
        if not isinstance(self.request, Generate):
            return self.request
        left_ms = max(1.0, 1000 * (self.deadline - now)) if self.request.deadline_ms else 0.0
        return replace(self.request, generated=tuple(self.token_ids), attempt=self.attempt, deadline_ms=left_ms)

    def sent(self, incarnation: str) -> None:
        """To the verifier with an ``incarnation``."""
        self.submitted, self.answered = True, False
        self.had, self.begun, self.asked = len(self.token_ids), not self.attempt, incarnation

    def welcomed(self, address: str, welcome: Welcome) -> None:
        """The verifier at ``address`` is another, or has forgotten us."""
        if self.at in (None, address) and self.asked not in ("", welcome.incarnation):
            self._outlived()
        if self.at == address:
            self.submitted = False
            if self.served not in (None, Served.by(welcome)):
                self.at = None

    def lost(self, in_order: bool, elsewhere: bool) -> None:
        """Its verifier has gone; ``in_order``: so no request is the cause. ``elsewhere``: another goes on with it."""
        self.submitted, self.at = False, None
        if elsewhere and not in_order:
            self._outlived()
        if elsewhere or in_order:
            self.asked = ""

    def given_back(self) -> None:
        """The verifier does not work on it, and says so."""
        self.submitted, self.at = False, None
        self.begun, self.asked = False, ""

    def _outlived(self) -> None:
        """The verifier ended, and not in order, while it may have worked on this request."""
        if self.begun:
            self.attempt = 1 if len(self.token_ids) - self.had >= SETTLED_TOKENS else self.attempt + 1
        self.begun = False


@dataclass(frozen=True, slots=True)
class Result:
    """Results of an event: news by caller, and a message to send."""

    news: tuple[tuple[str, News], ...] = ()
    send: Message | None = None


class Session:
    """The open calls by their ids, oldest first. The driver sends to each verifier what is ``due`` there, and says so
    with ``sent``."""

    def __init__(
        self,
        outlive_drain: bool,
        addresses: Sequence[str] = (ONLY,),
        max_retries: int = 0,
        clock: Callable[[], float] = lambda: 0.0,
        spread: Callable[[], float] = random.random,
    ) -> None:
        """``outlive_drain``: whether streams wait for the successor of a verifier that shuts down in order.
        ``max_retries``: of a request for which there is no room anywhere; ``spread``: numbers from 0 to 1 by which
        clients that were refused together do not come again together."""
        self.calls: dict[str, Call] = {}
        self.verifiers = Verifiers(addresses)
        self._outlive_drain, self._max_retries = outlive_drain, max_retries
        self._clock, self._spread = clock, spread

    def start(self, request: Generate) -> None:
        self.calls[request.rid] = Call(request, self._clock(), self.verifiers.served)

    def ask(self, question: Question, at: str | None = None) -> None:
        """``at``: the verifier that is asked; None: any."""
        self.calls[question.rid] = Call(question, at=at)

    def place(self, rid: str) -> str | None:
        """The address of the verifier that serves a call, if one does."""
        call = self.calls.get(rid)
        return call.at if call is not None else None

    def drop(self, rid: str) -> Cancel | None:
        """Forget a call; the message that tells the verifier, if it works on it."""
        call = self.calls.pop(rid, None)
        return Cancel(rid) if call is not None and call.is_stream and call.submitted else None

    def pause(self, rid: str) -> Cancel | None:
        """Have no verifier work on a stream until :meth:`go_on`; the message for the verifier that works on it now."""
        call = self.calls.get(rid)
        if call is None or not call.submitted:
            return None
        call.given_back()
        call.paused = call.was_paused = True
        return Cancel(rid)

    @property
    def paused(self) -> list[str]:
        return [rid for rid, call in self.calls.items() if call.paused]

    def go_on(self, rid: str) -> None:
        self.calls[rid].paused = False

    def due(self, address: str = ONLY) -> Iterator[tuple[str, Message]]:
        """Every call that this verifier is to be asked and has not been, with the message that asks it."""
        now = self._clock()
        for rid, call in self.calls.items():
            if not call.submitted and not call.paused and call.retry_at <= now:
                if call.at is None:
                    call.at = self._choose(call)
                if call.at == address:
                    yield rid, call.message(now)

    def _choose(self, call: Call) -> str | None:
        if not isinstance(call.request, Generate):
            return next(iter(self.verifiers.usable()), None)
        streams = Counter(one.at for one in self.calls.values() if one.is_stream and one.at)
        return self.verifiers.choose(call.request, streams, call.refused_by)

    def sent(self, rid: str) -> None:
        call = self.calls[rid]
        call.sent(self.verifiers.incarnation(call.at))
        if call.is_stream and call.served is None:
            call.served = self.verifiers.served

    def expire(self) -> Result:
        """Streams without a verifier end at their deadline here; the others' verifiers see to it."""
        now = self._clock()
        late = [(rid, call) for rid, call in self.calls.items() if not call.submitted and call.deadline < now]
        full = "no verifier had room for the request before its deadline; allow more time"
        unread = "the answer was not read before its deadline; read faster, or allow more time"
        return Result(
            tuple(
                news
                for rid, call in late
                for news in self.reject(
                    rid, RequestError(FailureCode.DEADLINE_EXCEEDED, unread if call.paused else full)
                ).news
            )
        )

    def receive(self, message: Message | Lost, address: str = ONLY) -> Result:
        """``address``: of the verifier that says it."""
        match message:
            case Lost():
                return self._lost(message.why, address)
            case Welcome():
                self.verifiers.welcomed(address, message)
                for call in self.calls.values():
                    call.welcomed(address, message)
                return Result(self._stranded())
            case Refuse(code=RefuseCode.MALFORMED):
                return self._malformed(message, address)
            case Chunk():
                return self._chunk(message, address)
            case Failed():
                return self._failed(message, address)
            case Done() | StatusReport() | Tokenized():
                asking = self.calls.get(message.rid)
                if asking is not None and asking.answered_by(message):
                    del self.calls[message.rid]
                    return Result(((message.rid, message),))
        return Result()

    def fail(self, error: DuoactorError) -> Result:
        """Every call ends with that error."""
        news = tuple((rid, error) for rid in self.calls)
        self.calls.clear()
        return Result(news)

    def reject(self, rid: str, error: DuoactorError) -> Result:
        """One call ends with that error."""
        del self.calls[rid]
        return Result(((rid, error),))

    def _lost(self, why: Why, address: str) -> Result:
        self.verifiers.lost(address)
        elsewhere = bool(self.verifiers.usable(but=(address,)))
        lost = [rid for rid, call in self.calls.items() if call.at == address]
        for rid in lost:
            self.calls[rid].lost(why is Why.DRAINING, elsewhere)
        if elsewhere or why is not Why.DRAINING or self._outlive_drain:
            return Result(self._stranded())
        news = tuple((rid, self._ended_by_drain(rid)) for rid in lost)
        for rid in lost:
            del self.calls[rid]
        return Result(news)

    def _ended_by_drain(self, rid: str) -> ConnectionLost:
        call = self.calls[rid]
        received = f"; {len(call.token_ids)} tokens were received" if call.is_stream else ""
        return ConnectionLost(f"the verifier was shut down{received}")

    def _stranded(self) -> tuple[tuple[str, News], ...]:
        """End the streams that no verifier serves the model of any more."""
        now = self.verifiers.served
        ended: list[tuple[str, News]] = []
        for rid, call in list(self.calls.items()):
            was = call.served
            if call.at is None and was is not None and now is not None and was != now:
                detail = (
                    f"the verifiers serve {now.told_from(was)} and not {was.told_from(now)} any more, with which this "
                    f"answer began; {len(call.token_ids)} tokens were received, ask again for all of them"
                )
                ended.extend(self.reject(rid, ConnectionLost(detail)).news)
        return tuple(ended)

    def _chunk(self, chunk: Chunk, address: str) -> Result:
        state = self.calls.get(chunk.rid)
        if state is None or not state.is_stream or state.at not in (None, address):
            # It was cancelled, or went elsewhere: the Cancel was lost, or this chunk was on its way already.
            return Result(send=Cancel(chunk.rid) if chunk.finish_reason is None else None)
        news = state.accept(chunk)
        if state.finish_reason is not None:
            del self.calls[chunk.rid]
        return Result(((chunk.rid, news),)) if news is not None else Result()

    def _failed(self, failed: Failed, address: str) -> Result:
        call = self.calls.get(failed.rid)
        if call is None or call.at != address:
            return Result()
        error: DuoactorError = RequestError(failed.code, failed.detail, failed.retry_after_ms)
        if failed.code is FailureCode.DRAINING:
            self.verifiers.leaves(address)
            error = self._ended_by_drain(failed.rid)
            if self._outlive_drain or self.verifiers.usable():
                call.given_back()
                return Result(self._stranded())
        elif failed.code is FailureCode.OVERLOADED and call.is_stream and self._again(call, failed, address):
            return Result()
        return self.reject(failed.rid, error)

    def _again(self, call: Call, failed: Failed, address: str) -> bool:
        """Whether a request that found no room is tried again: at once elsewhere, else later if the deadline allows."""
        call.refused_by.add(address)
        if not self.verifiers.usable(but=call.refused_by):
            wait_s = max(failed.retry_after_ms / 1000, BACKOFF_S * 2 ** min(call.retries, MOST_DOUBLED)) * (
                1 + self._spread() / 4
            )
            at = self._clock() + wait_s
            if (call.retries >= self._max_retries and not call.was_paused) or at > call.deadline:
                return False
            call.retries, call.retry_at = call.retries + 1, at
            call.refused_by.clear()
        call.given_back()
        return True

    def _malformed(self, refusal: Refuse, address: str) -> Result:
        """The verifier could not read a message, and cannot say which: the oldest that it has not answered."""
        for rid, call in self.calls.items():
            if call.at == address and call.submitted and not call.answered:
                return self.reject(rid, RequestError(FailureCode.BAD_REQUEST, refusal.detail))
        return Result()
