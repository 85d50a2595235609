"""One connection's calls as a state machine: messages in, news for callers and messages to send out. No sockets, no
clock.

A stream survives its verifier: tokens are numbered, so what comes twice is dropped, and what is missing is asked for
again with the tokens held so far. Noise is keyed by position, so the rest of the text is the same (DESIGN section 3).
By the same means a stream that nobody reads is suspended: cancelled at the verifier, and resumed when it is read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

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
    Welcome,
)

Question = Status | Swap | DrainActor | Tokenize | Detokenize
Answer = Done | StatusReport | Tokenized
News = Chunk | Answer | DuoactorError


SETTLED_TOKENS = 16  # that come from a verifier before it ends: the request is not taken for the cause then


@dataclass(slots=True)
class Asking:
    """A question and whether it has been sent. Each may be repeated: a second swap or drain finds nothing to move."""

    question: Question
    submitted: bool = False
    answered: bool = False

    def message(self) -> Question:
        return self.question


@dataclass(slots=True)
class StreamState:
    """What the client holds of one stream. ``submitted``: the verifier was asked; ``answered``: it has begun to."""

    request: Generate
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    submitted: bool = False
    answered: bool = False
    suspended: bool = False
    attempt: int = 0  # see section 6.6 of SPEC.md: a request may be what ends the verifier
    begun: bool = False  # whether the verifier works on it, or may
    had: int = 0  # tokens when it was last asked for

    def accept(self, chunk: Chunk) -> Chunk | None:
        """The new part of a chunk, or None if there is none. LookupError if tokens before it are missing."""
        have = len(self.token_ids)
        if chunk.offset > have:
            raise LookupError(f"tokens {have} to {chunk.offset} are missing")
        known = have - chunk.offset
        if known >= len(chunk.token_ids) and chunk.finish_reason is None:
            return None
        if known:
            chunk = msgspec.structs.replace(
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

    def message(self) -> Generate:
        """The request for what is still to come."""
        return msgspec.structs.replace(self.request, generated=tuple(self.token_ids), attempt=self.attempt)

    def sent(self) -> None:
        self.had, self.begun = len(self.token_ids), not self.attempt

    def outlived(self) -> None:
        """The verifier ended, and not in order, while it may have worked on this request."""
        if self.begun:
            self.attempt = 1 if len(self.token_ids) - self.had >= SETTLED_TOKENS else self.attempt + 1
        self.begun = False


Call = Asking | StreamState


@dataclass(frozen=True, slots=True)
class Result:
    """What an event led to: news for the callers of these ids, and a message to send."""

    news: tuple[tuple[str, News], ...] = ()
    send: Message | None = None


class Session:
    """The open calls by their ids, oldest first. The driver sends what is ``due`` and says so with ``sent``."""

    def __init__(self, outlive_drain: bool) -> None:
        """``outlive_drain``: whether streams wait for the successor of a verifier that shuts down in order."""
        self.calls: dict[str, Call] = {}
        self._outlive_drain = outlive_drain
        self._incarnation = ""  # of the verifier that was asked last

    # --- what callers want -------------------------------------------------------------------------------------------

    def start(self, request: Generate) -> None:
        self.calls[request.rid] = StreamState(request)

    def ask(self, question: Question) -> None:
        self.calls[question.rid] = Asking(question)

    def drop(self, rid: str) -> Cancel | None:
        """Forget a call; the message that tells the verifier, if it works on it."""
        call = self.calls.pop(rid, None)
        return Cancel(rid) if isinstance(call, StreamState) and call.submitted else None

    def suspend(self, rid: str) -> Cancel | None:
        """Nobody reads the stream at present: the verifier need not go on with it."""
        call = self.calls.get(rid)
        if not isinstance(call, StreamState) or call.suspended:
            return None
        was_submitted = call.submitted
        call.suspended, call.submitted, call.begun = True, False, False
        return Cancel(rid) if was_submitted else None

    def wake(self, rid: str) -> bool:
        """The stream is being read again; whether it had been suspended."""
        call = self.calls.get(rid)
        if not isinstance(call, StreamState) or not call.suspended:
            return False
        call.suspended = False
        return True

    # --- what is to be sent ------------------------------------------------------------------------------------------

    def due(self) -> Iterator[tuple[str, Message]]:
        """Every call that the verifier has not been asked, with the message that asks it."""
        for rid, call in self.calls.items():
            if not call.submitted and not (isinstance(call, StreamState) and call.suspended):
                yield rid, call.message()

    def sent(self, rid: str) -> None:
        call = self.calls[rid]
        call.submitted, call.answered = True, False
        if isinstance(call, StreamState):
            call.sent()

    # --- what the verifier says --------------------------------------------------------------------------------------

    def receive(self, message: Message | Lost) -> Result:
        match message:
            case Lost():
                return self._lost(message.why)
            case Welcome():
                self._welcome(message)
            case Refuse(code=RefuseCode.MALFORMED):
                return self._malformed(message)
            case Chunk():
                return self._chunk(message)
            case Failed():
                return self._failed(message)
            case Done() | StatusReport() | Tokenized():
                if self.calls.pop(message.rid, None) is not None:
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

    def _welcome(self, welcome: Welcome) -> None:
        before, self._incarnation = self._incarnation, welcome.incarnation
        if before and before != welcome.incarnation:
            for call in self.calls.values():
                if isinstance(call, StreamState):
                    call.outlived()
        self._resubmit()

    def _resubmit(self) -> None:
        for call in self.calls.values():
            call.submitted = False

    def _lost(self, why: Why) -> Result:
        self._resubmit()
        if why is Why.DRAINING:
            self._incarnation = ""  # it ends in order, so no request is the cause
        if why is not Why.DRAINING or self._outlive_drain:
            return Result()
        news = tuple((rid, self._ended_by_drain(rid)) for rid in self.calls)
        self.calls.clear()
        return Result(news)

    def _ended_by_drain(self, rid: str) -> ConnectionLost:
        call = self.calls[rid]
        received = f"; {len(call.token_ids)} tokens were received" if isinstance(call, StreamState) else ""
        return ConnectionLost(f"the verifier was shut down{received}")

    def _chunk(self, chunk: Chunk) -> Result:
        state = self.calls.get(chunk.rid)
        if not isinstance(state, StreamState):
            # It was cancelled: the Cancel was lost, or this chunk was on its way already.
            return Result(send=Cancel(chunk.rid) if chunk.finish_reason is None else None)
        try:
            news = state.accept(chunk)
        except LookupError:
            state.submitted = False
            return Result()
        state.answered = state.begun = True
        if state.finish_reason is not None:
            del self.calls[chunk.rid]
        return Result(((chunk.rid, news),)) if news is not None else Result()

    def _failed(self, failed: Failed) -> Result:
        call = self.calls.get(failed.rid)
        if call is None or (isinstance(call, StreamState) and call.suspended):
            return Result()
        if failed.code is FailureCode.DRAINING:
            if self._outlive_drain:
                call.submitted = False  # it goes on with the verifier's successor
                return Result()
            error: DuoactorError = self._ended_by_drain(failed.rid)
        else:
            error = RequestError(failed.code, failed.detail)
        return self.reject(failed.rid, error)

    def _malformed(self, refusal: Refuse) -> Result:
        """The verifier could not read a message, and cannot say which: the oldest that it has not answered."""
        for rid, call in self.calls.items():
            if call.submitted and not call.answered:
                return self.reject(rid, RequestError(FailureCode.BAD_REQUEST, refusal.detail))
        return Result()
