"""Anthropic's ``/v1/messages``: another shape around the same questions and chunks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duoactor.serve.answers import Pieces, figures
from duoactor.serve.anthropic.blocks import (
    Message,
    OutputConfig,
    TextBlock,
    ToolChoice,
    ToolDefinition,
    ToolUseBlock,
    form,
    turns,
    use,
)
from duoactor.serve.content import ContentPart
from duoactor.serve.errors import ApiError
from duoactor.serve.parameters import Speculation, decode, stops
from duoactor.serve.question import Question, open_ended
from duoactor.serve.stream import event
from duoactor.serve.tool_calls.events import (
    Arguments,
    CallBegan,
    Called,
    CallEnded,
    Event,
    Parser,
    Said,
    Text,
    gathered,
)
from duoactor.serve.tool_calls.use import ToolUse
from protocols.messages import ChatTurn, Chunk, FinishReason, Rendering, RequestStats, Sampling


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
    output_config: OutputConfig = OutputConfig()
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice | None = None


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Of ``/v1/messages/count_tokens``."""

    model: str
    messages: Annotated[tuple[Message, ...], Meta(min_length=1)]
    system: str | tuple[ContentPart, ...] = ""
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice | None = None


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
    content: list[TextBlock | ToolUseBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage
    metrics: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def parse(body: bytes) -> tuple[MessagesRequest, Question]:
    wanted, ignored = decode(body, MessagesRequest)
    asked = turns(wanted.system, wanted.messages)
    question = Question(
        prompts=(asked,),
        sampling=Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            stop=stops(wanted.stop_sequences),
            max_tokens=wanted.max_tokens,
        ),
        form=form(wanted.output_config),
        tools=use(wanted.tools, wanted.tool_choice),
        how=wanted,
        rendering=Rendering(continue_final=open_ended(asked)),
        ignored=ignored,
    )
    return wanted, question


def parse_count(body: bytes) -> tuple[str, tuple[ChatTurn, ...], ToolUse, Rendering]:
    """The model's name, and what is to be counted."""
    wanted, _ = decode(body, CountRequest)
    asked = turns(wanted.system, wanted.messages)
    return wanted.model, asked, use(wanted.tools, wanted.tool_choice), Rendering(continue_final=open_ended(asked))


class MessagesAnswer:
    """Blocks follow one another: ``_blocks`` of them have begun, the last of which may be open."""

    def __init__(self, wanted: MessagesRequest, model: str, parser: Callable[[], Parser]) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = model
        self._parser = parser()
        self._blocks = 0
        self._open = self._called = False
        self._last: Chunk | None = None

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        (chunks,) = choices
        parts = gathered([*self._parser.feed("".join(chunk.text for chunk in chunks)), *self._parser.end()])
        content = [_block(part) for part in parts] or [TextBlock("")]
        reason, sequence = _stop(chunks[-1], any(isinstance(part, Called) for part in parts))
        return msgspec.json.encode(
            MessageAnswer(
                id=self._id,
                model=self._model,
                content=content,
                stop_reason=reason,
                stop_sequence=sequence,
                usage=Usage.of(stats[0].prompt_tokens, stats[0].cached_tokens, stats[0].completion_tokens),
                metrics=figures(stats),
            )
        )

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        out = b""
        if self._last is None:
            usage = Usage.of(chunk.prompt_tokens, chunk.cached_tokens, 0)
            empty = MessageAnswer(id=self._id, model=self._model, content=[], usage=usage)
            out = _event("message_start", message=empty)
        self._last = chunk
        return out + self._events(self._parser.feed(chunk.text))

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        assert self._last is not None
        out = self._events(self._parser.end())
        if not self._blocks:
            out += self._begin(TextBlock(""))
        reason, sequence = _stop(self._last, self._called)
        return (
            out
            + self._end_block()
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

    # --- blocks ------------------------------------------------------------------------------------------------------

    def _events(self, events: Sequence[Event]) -> bytes:
        out = b""
        for one in events:
            match one:
                case Text(piece):
                    if not self._open:
                        out += self._begin(TextBlock(""))
                    out += self._delta(type="text_delta", text=piece)
                case CallBegan(name):
                    self._called = True
                    out += self._end_block() + self._begin(ToolUseBlock(_call_id(), name, {}))
                case Arguments(piece):
                    out += self._delta(type="input_json_delta", partial_json=piece)
                case CallEnded():
                    out += self._end_block()
        return out

    def _begin(self, block: TextBlock | ToolUseBlock) -> bytes:
        self._open = True
        self._blocks += 1
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _end_block(self) -> bytes:
        if not self._open:
            return b""
        self._open = False
        return _event("content_block_stop", index=self._blocks - 1)


def _block(part: Said | Called) -> TextBlock | ToolUseBlock:
    if isinstance(part, Said):
        return TextBlock(part.text)
    try:
        found = msgspec.json.decode(part.arguments)
    except (msgspec.DecodeError, RecursionError):
        found = None
    # arguments that were cut off, or are no JSON: the API has no place for them
    return ToolUseBlock(_call_id(), part.name, found if isinstance(found, dict) else {})


def _call_id() -> str:
    return f"toolu_{uuid.uuid4().hex[:24]}"


def _stop(last: Chunk, called: bool) -> tuple[str, str | None]:
    """(reason, sequence)"""
    if last.finish_reason is FinishReason.LENGTH:
        return "max_tokens", None
    if isinstance(last.stop_reason, str):
        return "stop_sequence", last.stop_reason
    if called:
        return "tool_use", None
    return "end_turn", None


def _event(name: str, **data: Any) -> bytes:
    return event(msgspec.json.encode({"type": name, **data}), name.encode())
