"""OpenAI's ``/v1/responses``, stateless: text in, text out, nothing kept."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from duoactor.serve.answers import Pieces, TokenDetails, figures, now
from duoactor.serve.chat import ContentPart, text_of
from duoactor.serve.errors import ApiError
from duoactor.serve.parameters import HARMLESS, Speculation, decode
from duoactor.serve.question import UNLIMITED, Question
from duoactor.serve.stream import event
from protocols.messages import ChatTurn, Chunk, FinishReason, RequestStats, Sampling

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}


class InputItem(msgspec.Struct, frozen=True):
    role: Literal["developer", "system", "user", "assistant"]
    content: str | tuple[ContentPart, ...]
    type: Literal["message"] = "message"


class TextFormat(msgspec.Struct, frozen=True):
    type: Literal["text"] = "text"


class TextOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: TextFormat = TextFormat()


class ResponsesRequest(Speculation, frozen=True, kw_only=True):
    model: str = ""
    input: str | tuple[InputItem, ...]
    instructions: str = ""
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    text: TextOptions = TextOptions()
    include: tuple[()] = ()
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"


class OutputText(msgspec.Struct, frozen=True):
    text: str
    type: str = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    status: str
    content: list[OutputText]


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
    output: list[OutputMessage] = []
    usage: Usage | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    tools: tuple[()] = ()
    tool_choice: str = "none"
    parallel_tool_calls: bool = False
    previous_response_id: None = None
    store: bool = False
    metadata: dict[str, str] = {}
    metrics: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def parse(body: bytes) -> tuple[ResponsesRequest, Question]:
    wanted = decode(body, ResponsesRequest, HARMLESS)
    question = Question(
        prompts=(_turns(wanted),),
        sampling=Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            max_tokens=wanted.max_output_tokens or UNLIMITED,
            seed=wanted.seed or 0,
        ),
        seeded=wanted.seed is not None,
        method=wanted.how(),
        num_speculative_tokens=wanted.num_speculative_tokens,
        cache_salt=wanted.cache_salt,
    )
    return wanted, question


def _turns(wanted: ResponsesRequest) -> tuple[ChatTurn, ...]:
    first = (ChatTurn("system", wanted.instructions),) if wanted.instructions else ()
    if isinstance(wanted.input, str):
        return (*first, ChatTurn("user", wanted.input))
    rest = (
        ChatTurn(_ROLES[item.role], text_of(item.content, f"input[{at}].content"))
        for at, item in enumerate(wanted.input)
    )
    return (*first, *rest)


class ResponsesAnswer:
    def __init__(self, wanted: ResponsesRequest, model: str) -> None:
        self._wanted = wanted
        self._id, self._item = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._created = now()
        self._model = model
        self._sequence = 0
        self._text = ""
        self._begun = False
        self._finish: FinishReason | None = None

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        (chunks,) = choices
        self._text = "".join(chunk.text for chunk in chunks)
        self._finish = chunks[-1].finish_reason
        return msgspec.json.encode(self._ended(stats))

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        out = b""
        if not self._begun:
            self._begun = True
            begun = self._response("in_progress")
            out = self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)
            out += self._event("response.output_item.added", output_index=0, item=self._message("in_progress"))
            out += self._part("response.content_part.added", part=OutputText(""))
        self._finish = chunk.finish_reason
        if text := chunk.text:
            self._text += text
            out += self._part("response.output_text.delta", delta=text, logprobs=())
        return out

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        ended = self._ended(stats)
        return (
            self._part("response.output_text.done", text=self._text, logprobs=())
            + self._part("response.content_part.done", part=OutputText(self._text))
            + self._event("response.output_item.done", output_index=0, item=ended.output[0])
            + self._event(f"response.{ended.status}", response=ended)
        )

    def fail(self, error: ApiError) -> bytes:
        found = {"code": error.code or "server_error", "message": str(error)}
        failed = msgspec.structs.replace(self._response("failed"), error=found)
        return self._event("response.failed", response=failed)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _message(self, status: str, *content: OutputText) -> OutputMessage:
        return OutputMessage(id=self._item, status=status, content=list(content))

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
        )

    def _ended(self, stats: Sequence[RequestStats]) -> Response:
        cut = self._finish is FinishReason.LENGTH
        status = "incomplete" if cut else "completed"
        read, made = stats[0].prompt_tokens, stats[0].completion_tokens
        return msgspec.structs.replace(
            self._response(status),
            output=[self._message(status, OutputText(self._text))],
            usage=Usage(read, made, read + made, TokenDetails(stats[0].cached_tokens)),
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            metrics=figures(stats),
        )

    def _part(self, kind: str, **data: Any) -> bytes:
        return self._event(kind, item_id=self._item, output_index=0, content_index=0, **data)

    def _event(self, kind: str, **data: Any) -> bytes:
        made = {"type": kind, "sequence_number": self._sequence, **data}
        self._sequence += 1
        return event(msgspec.json.encode(made), kind.encode())
