"""One connection's streams as a state machine: messages in, chunks and messages to send out. No sockets, no clock.

A stream survives its verifier: tokens are numbered, so what comes twice is dropped, and what is missing is asked for
again with the tokens held so far. Noise is keyed by position, so the rest of the text is the same (DESIGN section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from protocols.errors import DuoactorError, RefusedError, RequestError
from protocols.messages import (
    Chunk,
    Done,
    Drain,
    Failed,
    FailureCode,
    FinishReason,
    Generate,
    Message,
    Refuse,
    RefuseCode,
    StatusReport,
    Tokenized,
    Welcome,
)


@dataclass(slots=True)
class StreamState:
    """What the client holds of one stream."""

    request: Generate
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    cancelled: bool = False

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
            )
        self.token_ids.extend(chunk.token_ids)
        self.finish_reason = chunk.finish_reason
        return chunk

    def resume(self) -> Generate:
        """The request for what is still to come."""
        return msgspec.structs.replace(self.request, generated=tuple(self.token_ids))


@dataclass(slots=True)
class Result:
    """What one message led to: news for a stream or a question by its id, and messages to send."""

    rid: str = ""
    news: Chunk | Done | StatusReport | Tokenized | DuoactorError | None = None
    send: Sequence[Message] = ()
    greet: bool = False  # say Hello (again)


class Session:
    def __init__(self) -> None:
        self.streams: dict[str, StreamState] = {}
        self.incarnation = ""
        self.welcome: Welcome | None = None
        self.void = True  # the verifier knows nothing of us: it must be greeted, and every stream submitted again

    def start(self, request: Generate) -> Sequence[Message]:
        self.streams[request.rid] = StreamState(request)
        return () if self.void else (request,)

    def stop(self, rid: str) -> bool:
        """Forget a stream; whether the verifier must be told."""
        state = self.streams.pop(rid, None)
        return state is not None and state.finish_reason is None and not self.void

    def lost(self) -> None:
        """The verifier was silent for too long."""
        self.void = True

    def receive(self, message: Message) -> Result:
        match message:
            case Welcome():
                return self._welcome(message)
            case Refuse(code=RefuseCode.UNKNOWN_PEER) | Refuse(code=RefuseCode.DRAINING):
                self.void = True
                return Result(greet=message.code is RefuseCode.UNKNOWN_PEER)
            case Refuse():
                return Result(news=RefusedError(message.code, message.detail))
            case Drain():
                self.void = True
                return Result()
            case Chunk():
                return self._chunk(message)
            case Failed():
                return self._failed(message)
            case Done() | StatusReport() | Tokenized():
                return Result(message.rid, message)
        return Result()

    def _welcome(self, welcome: Welcome) -> Result:
        again = self.void or welcome.incarnation != self.incarnation
        self.welcome, self.incarnation, self.void = welcome, welcome.incarnation, False
        return Result(send=[s.resume() for s in self.streams.values()] if again else ())

    def _chunk(self, chunk: Chunk) -> Result:
        state = self.streams.get(chunk.rid)
        if state is None:
            return Result()
        try:
            news = state.accept(chunk)
        except LookupError:
            return Result(send=() if self.void else (state.resume(),))
        if state.finish_reason is not None:
            del self.streams[chunk.rid]
        return Result(chunk.rid, news)

    def _failed(self, failed: Failed) -> Result:
        if failed.code is FailureCode.DRAINING and failed.rid in self.streams:
            self.void = True  # the verifier leaves; the stream goes on with its successor
            return Result()
        self.streams.pop(failed.rid, None)
        return Result(failed.rid, RequestError(failed.code, failed.detail))
