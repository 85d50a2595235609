"""Anthropic's ``/v1/messages``: another shape around the same questions and chunks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from duoactor.serve.answers import Pieces, figures
from duoactor.serve.chat import ContentPart, text_of
from duoactor.serve.errors import ApiError
from duoactor.serve.parameters import Speculation, decode
from duoactor.serve.question import Question
from duoactor.serve.stream import event
from protocols.messages import ChatTurn, Chunk, FinishReason, RequestStats, Sampling

HARMLESS = frozenset({"metadata", "service_tier", "container", "context_management", "cache_control", "betas"})


class Message(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | tuple[ContentPart, ...]


class Thinking(msgspec.Struct, frozen=True):
    type: Literal["disabled"] = "disabled"


class MessagesRequest(Speculation, frozen=True, kw_only=True):
    model: str
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)]
    system: str | tuple[ContentPart, ...] = ""
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    stop_sequences: tuple[str, ...] = ()
    thinking: Thinking = Thinking()


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``/v1/messages/count_tokens``."""

    model: str
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)]
    system: str | tuple[ContentPart, ...] = ""
    thinking: Thinking = Thinking()


class TextBlock(msgspec.Struct, frozen=True):
    text: str
    type: str = "text"


class Usage(msgspec.Struct, frozen=True):
    """Anthropic counts what came from the cache apart from ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0  # of those with a price of their own, which nothing has here

    @classmethod
    def of(cls, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> Usage:
        return cls(prompt_tokens - cached_tokens, output_tokens, cached_tokens)


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[TextBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage
    metrics: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def parse(body: bytes) -> tuple[MessagesRequest, Question]:
    wanted = decode(body, MessagesRequest, HARMLESS)
    question = Question(
        prompts=(turns(wanted),),
        sampling=Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            stop=wanted.stop_sequences,
            max_tokens=wanted.max_tokens,
        ),
        method=wanted.how(),
        num_speculative_tokens=wanted.num_speculative_tokens,
        cache_salt=wanted.cache_salt,
    )
    return wanted, question


def parse_count(body: bytes) -> CountRequest:
    return decode(body, CountRequest, HARMLESS)


def turns(wanted: MessagesRequest | CountRequest) -> tuple[ChatTurn, ...]:
    system = text_of(wanted.system, "system")
    first = (ChatTurn("system", system),) if system else ()
    rest = (
        ChatTurn(message.role, text_of(message.content, f"messages[{at}].content"))
        for at, message in enumerate(wanted.messages)
    )
    return (*first, *rest)


class MessagesAnswer:
    def __init__(self, wanted: MessagesRequest, model: str) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._begun = False
        self._last: Chunk | None = None

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        (chunks,) = choices
        reason, sequence = _stop(chunks[-1])
        return msgspec.json.encode(
            MessageAnswer(
                id=self._id,
                model=self._model,
                content=[TextBlock("".join(chunk.text for chunk in chunks))],
                stop_reason=reason,
                stop_sequence=sequence,
                usage=Usage.of(stats[0].prompt_tokens, stats[0].cached_tokens, stats[0].completion_tokens),
                metrics=figures(stats),
            )
        )

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        out = b""
        if not self._begun:
            self._begun = True
            usage = Usage.of(chunk.prompt_tokens, chunk.cached_tokens, 0)
            empty = MessageAnswer(id=self._id, model=self._model, content=[], usage=usage)
            out = _event("message_start", message=empty)
            out += _event("content_block_start", index=0, content_block=TextBlock(""))
        self._last = chunk
        if text := chunk.text:
            out += _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
        return out

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        assert self._last is not None
        reason, sequence = _stop(self._last)
        return (
            _event("content_block_stop", index=0)
            + _event(
                "message_delta",
                delta={"stop_reason": reason, "stop_sequence": sequence},
                usage=Usage.of(stats[0].prompt_tokens, stats[0].cached_tokens, stats[0].completion_tokens),
                metrics=figures(stats),
            )
            + _event("message_stop")
        )

    def fail(self, error: ApiError) -> bytes:
        return event(msgspec.json.encode(error.anthropic()), b"error")


def _stop(last: Chunk) -> tuple[str, str | None]:
    """(reason, sequence)"""
    if last.finish_reason is FinishReason.LENGTH:
        return "max_tokens", None
    if isinstance(last.stop_reason, str):
        return "stop_sequence", last.stop_reason
    return "end_turn", None


def _event(name: str, **data: Any) -> bytes:
    return event(msgspec.json.encode({"type": name, **data}), name.encode())
