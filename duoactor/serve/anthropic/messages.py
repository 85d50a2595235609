"""Anthropic's ``/v1/messages``: another shape around the same questions and chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from duoactor.serve.answers import ItemAnswer, Kind, figures, new_id
from duoactor.serve.anthropic.blocks import (
    InputMessage,
    OutputConfig,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolDefinition,
    ToolUseBlock,
    shape,
    thinking,
    turns,
    use,
)
from duoactor.serve.content import ContentPart
from duoactor.serve.errors import ApiError
from duoactor.serve.parameters import Speculation, decode, limit, stops
from duoactor.serve.question import Question, open_ended
from duoactor.serve.stream import event
from duoactor.serve.thinking import ThinkingSwitch
from duoactor.serve.tool_calls.events import Parser
from protocols.messages import UNCHANGED, Chunk, Rendering, RequestStats, Sampling


class CountRequest(Speculation, frozen=True, kw_only=True):
    """The request of ``/v1/messages/count_tokens``."""

    model: str
    messages: Annotated[tuple[InputMessage, ...], Meta(min_length=1)]
    system: str | tuple[ContentPart, ...] = ""
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice | None = None
    thinking: ThinkingSwitch | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Annotated[int, Meta(ge=0)] = 0
    stop_sequences: tuple[str, ...] = ()
    output_config: OutputConfig = OutputConfig()
    thread: Any = None


class MessageUsage(msgspec.Struct, frozen=True):
    """Anthropic counts what came from the cache apart from ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0  # tokens with a price of their own: none here

    @classmethod
    def of(cls, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> MessageUsage:
        return cls(prompt_tokens - cached_tokens, output_tokens, cached_tokens)


OutputBlock = ThinkingBlock | TextBlock | ToolUseBlock


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[OutputBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    metrics: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def parse(body: bytes) -> tuple[MessagesRequest, Question]:
    wanted, ignored = decode(body, MessagesRequest)
    if wanted.thread is not None:  # the client then sends the whole conversation by itself
        detail = "no conversation is kept here: send all of it, without thread"
        raise ApiError(400, detail, param="thread", details={"error_code": "thread_unsupported_request"})
    sampling = Sampling(
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
        stop=stops(wanted.stop_sequences),
        max_tokens=limit(wanted.max_tokens, "max_tokens"),
    )
    question = _question(wanted, sampling, wanted.output_config.effort)
    return wanted, dataclasses.replace(question, shape=shape(wanted.output_config), ignored=ignored)


def parse_count(body: bytes) -> tuple[CountRequest, Question]:
    """The request, and the question whose tokens are to be counted."""
    wanted, _ = decode(body, CountRequest)
    return wanted, _question(wanted, UNCHANGED, None)


def _question(wanted: CountRequest, sampling: Sampling, effort: str | None) -> Question:
    asked = turns(wanted.system, wanted.messages)
    return Question(
        prompts=(asked,),
        sampling=sampling,
        tools=use(wanted.tools, wanted.tool_choice),
        how=wanted,
        rendering=Rendering(continue_final=open_ended(asked)),
        thinking=thinking(wanted.thinking, effort),
    )


class MessagesAnswer(ItemAnswer[OutputBlock]):
    def __init__(self, wanted: MessagesRequest, model: str, parser: Callable[[], Parser]) -> None:
        super().__init__(model, "msg_", parser)

    def opening(self, chunk: Chunk) -> bytes:
        usage = MessageUsage.of(chunk.prompt_tokens, chunk.cached_tokens, 0)
        return _event("message_start", message=MessageAnswer(id=self.id, model=self.model, content=[], usage=usage))

    def closing(self, stats: Sequence[RequestStats]) -> bytes:
        body = self.body(stats)
        delta = {"stop_reason": body.stop_reason, "stop_sequence": body.stop_sequence}
        return _event("message_delta", delta=delta, usage=body.usage, metrics=body.metrics) + _event("message_stop")

    def body(self, stats: Sequence[RequestStats]) -> MessageAnswer:
        reason, sequence = self._stop()
        return MessageAnswer(
            id=self.id,
            model=self.model,
            content=self.items,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=MessageUsage.of(stats[0].prompt_tokens, stats[0].cached_tokens, stats[0].completion_tokens),
            metrics=figures(stats),
        )

    def fail(self, error: ApiError) -> bytes:
        return event(msgspec.json.encode(error.anthropic()), b"error")

    def _stop(self) -> tuple[str, str | None]:
        """(reason, sequence)"""
        if self.cut:
            return "max_tokens", None
        if self.last is not None and isinstance(self.last.stop_reason, str):
            return "stop_sequence", self.last.stop_reason
        called = any(isinstance(one, ToolUseBlock) for one in self.items)
        return ("tool_use" if called else "end_turn"), None

    # --- blocks ------------------------------------------------------------------------------------------------------

    def item(self, kind: Kind, name: str = "") -> OutputBlock:
        match kind:
            case "thought":
                return ThinkingBlock("")
            case "text":
                return TextBlock("")
        return ToolUseBlock(new_id("toolu_"), name, {})

    def began(self, item: OutputBlock) -> bytes:
        return _event("content_block_start", index=len(self.items) - 1, content_block=item)

    def wrote(self, item: OutputBlock, piece: str) -> bytes:
        match item:
            case ThinkingBlock():
                return self._delta("thinking_delta", thinking=piece)
            case TextBlock():
                return self._delta("text_delta", text=piece)
        return self._delta("input_json_delta", partial_json=piece)

    def closed(self, item: OutputBlock, text: str, whole: bool) -> tuple[OutputBlock, bytes]:
        stop = _event("content_block_stop", index=len(self.items) - 1)
        match item:
            case ThinkingBlock():
                return ThinkingBlock(text), self._delta("signature_delta", signature="") + stop
            case TextBlock():
                return TextBlock(text), stop
            case ToolUseBlock():
                return replace(item, input=_input(text)), stop

    def _delta(self, kind: str, **data: str) -> bytes:
        return _event("content_block_delta", index=len(self.items) - 1, delta={"type": kind, **data})


def _input(arguments: str) -> dict[str, Any]:
    """Arguments of a call; empty where they were cut off or are no JSON, which the API cannot carry."""
    try:
        found = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _event(name: str, **data: Any) -> bytes:
    return event(msgspec.json.encode({"type": name, **data}), name.encode())
