"""OpenAI's ``/v1/responses``, stateless: text and functions, and nothing kept."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from duoactor.serve.answers import Pieces, TokenDetails, figures, now
from duoactor.serve.errors import ApiError
from duoactor.serve.openai.items import (
    InputItem,
    NamedTool,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    TextOptions,
    ToolItem,
    form,
    turns,
    use,
)
from duoactor.serve.parameters import Limit, Speculation, decode, limit
from duoactor.serve.question import Question
from duoactor.serve.stream import event
from duoactor.serve.tool_calls.events import Arguments, CallBegan, CallEnded, Event, Parser, Text
from protocols.messages import Chunk, FinishReason, RequestStats, Sampling

Choice = Literal["none", "auto", "required"]


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
    tool_choice: Choice | NamedTool = "auto"
    parallel_tool_calls: bool = True
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"


class OutputTokenDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: TokenDetails
    output_tokens_details: OutputTokenDetails = OutputTokenDetails()


class Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    model: str
    output: list[OutputItem] = []
    usage: Usage | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    text: TextOptions = TextOptions()
    tools: tuple[ToolItem, ...] = ()
    tool_choice: Choice | NamedTool = "auto"
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    store: bool = False
    metadata: dict[str, str] = {}
    metrics: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def parse(body: bytes) -> tuple[ResponsesRequest, Question]:
    wanted, ignored = decode(body, ResponsesRequest)
    question = Question(
        prompts=(turns(wanted.instructions, wanted.input),),
        sampling=Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            max_tokens=limit(wanted.max_output_tokens, "max_output_tokens"),
            seed=wanted.seed or 0,
        ),
        form=form(wanted.text.format),
        tools=use(wanted.tools, wanted.tool_choice, wanted.parallel_tool_calls),
        seeded=wanted.seed is not None,
        how=wanted,
        ignored=ignored,
    )
    return wanted, question


class ResponsesAnswer:
    """Items follow one another; ``_output`` holds those that have begun, the last of which may be open."""

    def __init__(self, wanted: ResponsesRequest, model: str, parser: Callable[[], Parser]) -> None:
        self._wanted = wanted
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = now()
        self._model = model
        self._parser = parser()
        self._sequence = 0
        self._output: list[OutputItem] = []
        self._open = self._begun = False
        self._written: list[str] = []  # pieces of the open item's text or arguments
        self._finish: FinishReason | None = None

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        self._finish = choices[0][-1].finish_reason
        self._events(self._parser.feed("".join(chunk.text for chunk in choices[0])))
        self.end(stats)
        return msgspec.json.encode(self._ended(stats))

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        out = b""
        if not self._begun:
            self._begun = True
            begun = self._response("in_progress")
            out = self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)
        self._finish = chunk.finish_reason
        return out + self._events(self._parser.feed(chunk.text))

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        out = self._events(self._parser.end())
        if not self._output:
            out += self._begin_message()
        out += self._end_item()
        ended = self._ended(stats)
        return out + self._event(f"response.{ended.status}", response=ended)

    def fail(self, error: ApiError) -> bytes:
        found = {"code": error.code or "server_error", "message": str(error)}
        failed = replace(self._response("failed"), error=found)
        return self._event("response.failed", response=failed)

    # --- items -------------------------------------------------------------------------------------------------------

    def _events(self, events: Sequence[Event]) -> bytes:
        out = b""
        for one in events:
            match one:
                case Text(piece):
                    if not self._open:
                        out += self._begin_message()
                    out += self._write("response.output_text.delta", piece, content_index=0, logprobs=())
                case CallBegan(name):
                    out += self._end_item()
                    ids = uuid.uuid4().hex[:24]
                    out += self._begin(
                        OutputCall(id=f"fc_{ids}", status="in_progress", call_id=f"call_{ids}", name=name, arguments="")
                    )
                case Arguments(piece):
                    out += self._write("response.function_call_arguments.delta", piece)
                case CallEnded():
                    out += self._end_item()
        return out

    def _begin_message(self) -> bytes:
        item = OutputMessage(id=f"msg_{uuid.uuid4().hex}", status="in_progress", content=[])
        return self._begin(item) + self._part("response.content_part.added", part=OutputText(""))

    def _begin(self, item: OutputItem) -> bytes:
        self._open = True
        self._written.clear()
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _write(self, kind: str, piece: str, **data: Any) -> bytes:
        self._written.append(piece)
        return self._of_item(kind, delta=piece, **data)

    def _end_item(self) -> bytes:
        if not self._open:
            return b""
        self._open = False
        text, status = "".join(self._written), self._status()
        item = self._output[-1]
        if isinstance(item, OutputCall):
            item = replace(item, arguments=text, status=status)
            out = self._of_item("response.function_call_arguments.done", name=item.name, arguments=text)
        else:
            part = OutputText(text)
            item = replace(item, content=[part], status=status)
            out = self._part("response.output_text.done", text=text, logprobs=())
            out += self._part("response.content_part.done", part=part)
        self._output[-1] = item
        return out + self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _status(self) -> str:
        return "incomplete" if self._finish is FinishReason.LENGTH else "completed"

    def _response(self, status: str) -> Response:
        wanted = self._wanted
        return Response(
            id=self._id,
            created_at=self._created,
            status=status,
            model=self._model,
            instructions=wanted.instructions or None,
            max_output_tokens=wanted.max_output_tokens,
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            text=wanted.text,
            tools=wanted.tools,
            tool_choice=wanted.tool_choice,
            parallel_tool_calls=wanted.parallel_tool_calls,
        )

    def _ended(self, stats: Sequence[RequestStats]) -> Response:
        status = self._status()
        read, made = stats[0].prompt_tokens, stats[0].completion_tokens
        return replace(
            self._response(status),
            output=self._output,
            usage=Usage(read, made, read + made, TokenDetails(stats[0].cached_tokens)),
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            metrics=figures(stats),
        )

    def _part(self, kind: str, **data: Any) -> bytes:
        return self._of_item(kind, content_index=0, **data)

    def _of_item(self, kind: str, **data: Any) -> bytes:
        return self._event(kind, item_id=self._output[-1].id, output_index=len(self._output) - 1, **data)

    def _event(self, kind: str, **data: Any) -> bytes:
        made = {"type": kind, "sequence_number": self._sequence, **data}
        self._sequence += 1
        return event(msgspec.json.encode(made), kind.encode())
