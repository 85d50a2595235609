"""What the answers of all APIs share: the interface that each of them fills, usage, and the last figures; and the
envelope of OpenAI's two completion APIs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from duoactor.client.metrics import metrics, together
from duoactor.serve.errors import ApiError
from duoactor.serve.parameters import SamplingParameters
from duoactor.serve.stream import DONE, event
from duoactor.serve.trace import ChunkTrace, traced
from duoactor.serve.trace import Pieces as Pieces
from protocols.messages import Chunk, RequestStats

C = TypeVar("C")


class TokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: TokenDetails


class Answer(Protocol):
    """One API's way to write an answer: as one body, or as events."""

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        """The body, from every choice's chunks."""
        ...

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        """The events for one chunk of choice ``index``; ``stats`` of all choices with the very last one, else none."""
        ...

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        """The events behind the last chunk."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """The events that end a stream which has begun and cannot go on."""
        ...


def usage_of(stats: Sequence[RequestStats], n: int) -> Usage:
    """Of the choices of one request; ``n`` of them answer each prompt."""
    prompt = sum(one.prompt_tokens for one in stats[::n])
    made = sum(one.completion_tokens for one in stats)
    return Usage(prompt, made, prompt + made, TokenDetails(sum(one.cached_tokens for one in stats[::n])))


def figures(stats: Sequence[RequestStats]) -> dict[str, Any]:
    """``metrics`` of an answer."""
    found = metrics(together(stats))
    return {name: found[name] for name in ("time_to_first_token_ms", "tokens_per_second", "speculative_decoding")}


def now() -> int:
    """As ``created`` has it."""
    return int(time.time())


class Envelope(msgspec.Struct, Generic[C], frozen=True, kw_only=True):
    """A completion, or one event of it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: Usage | UnsetType | None = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET
    trace: ChunkTrace | UnsetType = UNSET


class OpenAIAnswer:
    """Puts choices into envelopes."""

    def __init__(self, wanted: SamplingParameters, model: str, prefix: str, whole: str, part: str) -> None:
        """``whole`` and ``part`` are what a completion and an event of it are called."""
        self._id = f"{prefix}-{uuid.uuid4().hex}"
        self._created = now()
        self._model = model
        self._whole, self._part = whole, part
        self._n = wanted.n
        self._with_usage = wanted.stream_options.include_usage
        self._traced = wanted.trace

    def body(self, choices: list[C], stats: Sequence[RequestStats]) -> bytes:
        return msgspec.json.encode(
            Envelope(
                id=self._id,
                object=self._whole,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage_of(stats, self._n),
                metrics=figures(stats),
            )
        )

    def trace(self, chunk: Chunk, pieces: Pieces) -> ChunkTrace | UnsetType:
        """How the chunk's tokens came about, if the request asked for it."""
        return traced(chunk, pieces) if self._traced and chunk.token_ids else UNSET

    def event(
        self, choices: list[C], stats: Sequence[RequestStats] = (), trace: ChunkTrace | UnsetType = UNSET
    ) -> bytes:
        """``stats`` of all choices with the very last choice. The figures go with the last event, which is another
        one if usage was asked for."""
        last = bool(stats) and not (self._with_usage and choices)
        made = Envelope(
            id=self._id,
            object=self._part,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=(usage_of(stats, self._n) if last else None) if self._with_usage else UNSET,
            metrics=figures(stats) if last else UNSET,
            trace=trace,
        )
        return event(msgspec.json.encode(made))

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        return (self.event([], stats) if self._with_usage else b"") + DONE

    def fail(self, error: ApiError) -> bytes:
        return event(msgspec.json.encode(error.openai())) + DONE
