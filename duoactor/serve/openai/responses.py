"""OpenAI's ``/v1/responses``: text, thoughts and functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from duoactor.serve.answers import ItemAnswer, Kind, ThoughtDetails, TokenDetails, figures, new_id
from duoactor.serve.errors import ApiError, bad
from duoactor.serve.openai.items import (
    InputItem,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    TextOptions,
    ToolItem,
    turns,
    use,
)
from duoactor.serve.parameters import Limit, Speculation, decode, limit
from duoactor.serve.question import Question
from duoactor.serve.stream import event
from duoactor.serve.structure import shape_in
from duoactor.serve.thinking import Reasoning, wish
from duoactor.serve.tool_calls.events import Parser
from duoactor.serve.tool_calls.use import Choice, Pick, left_out
from protocols.messages import ChatTurn, Chunk, RequestStats, Sampling, ToolCall

LOGPROBS = "message.output_text.logprobs"  # other values of ``include`` ask for parts that no answer here has


class ResponsesRequest(Speculation, frozen=True, kw_only=True):
    model: str = ""
    input: str | tuple[InputItem, ...]
    instructions: str = ""
    max_output_tokens: Limit | None = None
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    text: TextOptions = TextOptions()
    tools: tuple[ToolItem, ...] = ()
    tool_choice: Choice | Pick = "auto"
    parallel_tool_calls: bool | None = None
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    previous_response_id: str = ""
    store: bool = True
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    include: tuple[str, ...] = ()
    reasoning: Reasoning = Reasoning()
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: TokenDetails
    output_tokens_details: ThoughtDetails


class Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    text: TextOptions = TextOptions()
    tools: tuple[ToolItem, ...] = ()
    tool_choice: Choice | Pick = "auto"
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool = True
    metadata: dict[str, str] = {}
    metrics: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def parse(body: bytes) -> tuple[ResponsesRequest, Question]:
    wanted, ignored = decode(body, ResponsesRequest)
    ignored.unknown += left_out(wanted.tools)
    if LOGPROBS in wanted.include:
        raise bad("include", f"cannot have {LOGPROBS}: ask /v1/chat/completions, with logprobs")
    if wanted.include:
        ignored.hints.append("include")
    reasoning, given = wanted.reasoning, wanted.text.format
    thinking = wish(reasoning.enabled, reasoning.effort, reasoning.max_tokens, wanted.chat_template_kwargs)
    question = Question(
        prompts=(turns(wanted.instructions, wanted.input),),
        sampling=Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            max_tokens=limit(wanted.max_output_tokens, "max_output_tokens"),
            seed=wanted.seed or 0,
        ),
        shape=shape_in(given.type, given.schema, "text.format"),
        tools=use(wanted.tools, wanted.tool_choice, wanted.parallel_tool_calls),
        seeded=wanted.seed is not None,
        how=wanted,
        thinking=thinking,
        ignored=ignored,
    )
    return wanted, question


class InputTokens(msgspec.Struct, frozen=True):
    input_tokens: int
    object: str = "response.input_tokens"


class ResponsesAnswer(ItemAnswer[OutputItem]):
    def __init__(self, wanted: ResponsesRequest, model: str, parser: Callable[[], Parser]) -> None:
        super().__init__(model, "resp_", parser)
        self._wanted = wanted
        self._sequence = 0
        self.ended: Callable[[Response], None] | None = None  # called once the answer is complete

    def opening(self, chunk: Chunk) -> bytes:
        begun = self._response("in_progress")
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def closing(self, stats: Sequence[RequestStats]) -> bytes:
        return self._event(f"response.{self._status}", response=self.body(stats))

    def fail(self, error: ApiError) -> bytes:
        found = {"code": error.code or "server_error", "message": str(error)}
        failed = replace(self._response("failed"), error=found)
        return self._event("response.failed", response=failed)

    # --- items -------------------------------------------------------------------------------------------------------

    def item(self, kind: Kind, name: str = "") -> OutputItem:
        ident, status = new_id(""), "in_progress"
        match kind:
            case "thought":
                return OutputReasoning(id=f"rs_{ident}", status=status, content=[])
            case "text":
                return OutputMessage(id=f"msg_{ident}", status=status, content=[])
        return OutputCall(id=f"fc_{ident}", status=status, call_id=f"call_{ident}", name=name, arguments="")

    def began(self, item: OutputItem) -> bytes:
        out = self._event("response.output_item.added", output_index=len(self.items) - 1, item=item)
        match item:
            case OutputReasoning():
                return out + self._part("content_part.added", part=ReasoningText(""))
            case OutputMessage():
                return out + self._part("content_part.added", part=OutputText(""))
        return out

    def wrote(self, item: OutputItem, piece: str) -> bytes:
        match item:
            case OutputReasoning():
                return self._part("reasoning_text.delta", delta=piece)
            case OutputMessage():
                return self._part("output_text.delta", delta=piece, logprobs=())
        return self._of_item("function_call_arguments.delta", delta=piece)

    def closed(self, item: OutputItem, text: str, whole: bool) -> tuple[OutputItem, bytes]:
        made: OutputItem
        status = "completed" if whole else "incomplete"
        match item:
            case OutputReasoning():
                thought = ReasoningText(text)
                made = replace(item, content=[thought], status=status)
                out = self._part("reasoning_text.done", text=text) + self._part("content_part.done", part=thought)
            case OutputMessage():
                part = OutputText(text)
                made = replace(item, content=[part], status=status)
                out = self._part("output_text.done", text=text, logprobs=())
                out += self._part("content_part.done", part=part)
            case OutputCall():
                made = replace(item, arguments=text, status=status)
                out = self._of_item("function_call_arguments.done", name=item.name, arguments=text)
        return made, out + self._event("response.output_item.done", output_index=len(self.items) - 1, item=made)

    # --- parts -------------------------------------------------------------------------------------------------------

    @property
    def _status(self) -> str:
        return "incomplete" if self.cut else "completed"

    def _response(self, status: str) -> Response:
        wanted = self._wanted
        return Response(
            id=self.id,
            created_at=self.created,
            status=status,
            model=self.model,
            instructions=wanted.instructions or None,
            max_output_tokens=wanted.max_output_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            text=wanted.text,
            tools=wanted.tools,
            tool_choice=wanted.tool_choice,
            parallel_tool_calls=use(wanted.tools, wanted.tool_choice, wanted.parallel_tool_calls).several,
            previous_response_id=wanted.previous_response_id or None,
            store=wanted.store,
            metadata=wanted.metadata,
        )

    def turn(self) -> ChatTurn:
        """The answer as a turn of the conversation."""
        made = ChatTurn("assistant", "")
        for item in self.items:
            match item:
                case OutputReasoning():
                    made = replace(made, reasoning="".join(part.text for part in item.content))
                case OutputMessage():
                    made = replace(made, content=made.content + "".join(part.text for part in item.content))
                case OutputCall():
                    call = ToolCall(item.call_id, item.name, item.arguments)
                    made = replace(made, tool_calls=(*made.tool_calls, call))
        return made

    def body(self, stats: Sequence[RequestStats]) -> Response:
        read, made = stats[0].prompt_tokens, stats[0].completion_tokens
        whole = replace(
            self._response(self._status),
            output=self.items,
            usage=ResponseUsage(
                read,
                made,
                read + made,
                TokenDetails(stats[0].cached_tokens),
                ThoughtDetails(self.thought_tokens),
            ),
            incomplete_details={"reason": "max_output_tokens"} if self.cut else None,
            metrics=figures(stats),
        )
        if self.ended is not None:
            self.ended(whole)
        return whole

    def _part(self, kind: str, **data: Any) -> bytes:
        return self._of_item(kind, content_index=0, **data)

    def _of_item(self, kind: str, **data: Any) -> bytes:
        at = len(self.items) - 1
        return self._event(f"response.{kind}", item_id=self.items[at].id, output_index=at, **data)

    def _event(self, kind: str, **data: Any) -> bytes:
        made = {"type": kind, "sequence_number": self._sequence, **data}
        self._sequence += 1
        return event(msgspec.json.encode(made), kind.encode())
