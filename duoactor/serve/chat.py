"""``/v1/chat/completions``: OpenAI's parameters as a question, and chunks as OpenAI's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from duoactor.serve.answers import OpenAIAnswer, Pieces
from duoactor.serve.errors import ApiError
from duoactor.serve.parameters import SamplingParameters, decode
from duoactor.serve.question import UNLIMITED, Question
from protocols.messages import ChatTurn, Chunk, RequestStats, TokenLogprobs


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True):
    """``content`` is a text, or its parts."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: tuple[Any, ...] | None = None
    function_call: Any = None
    tool_call_id: str | None = None
    audio: Any = None


class ChatRequest(SamplingParameters, frozen=True, kw_only=True):
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(msgspec.Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    index: int
    message: AnswerMessage
    finish_reason: str
    stop_reason: str | int | None
    logprobs: Logprobs | None


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: Logprobs | None = None


def parse(body: bytes) -> tuple[ChatRequest, Question]:
    wanted = decode(body, ChatRequest)
    if wanted.top_logprobs and not wanted.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    question = Question(
        prompts=(turns(wanted.messages),),
        sampling=wanted.sampling(
            max_tokens=wanted.max_completion_tokens or wanted.max_tokens or UNLIMITED,
            logprobs=wanted.top_logprobs if wanted.logprobs else -1,
        ),
        seeded=wanted.seed is not None,
        n=wanted.n,
        method=wanted.how(),
        num_speculative_tokens=wanted.num_speculative_tokens,
        cache_salt=wanted.cache_salt,
        trace=wanted.trace,
    )
    return wanted, question


def turns(messages: Sequence[ChatMessage]) -> tuple[ChatTurn, ...]:
    return tuple(_turn(message, f"messages[{at}]") for at, message in enumerate(messages))


def _turn(message: ChatMessage, where: str) -> ChatTurn:
    roles = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
    if message.role not in roles:
        param = f"{where}.role"
        raise ApiError(400, f"{param} can be system, developer, user or assistant, not {message.role!r}", param=param)
    for name in ("tool_calls", "function_call", "tool_call_id", "audio"):
        if getattr(message, name):
            raise ApiError(400, f"{where}.{name} is not supported here", param=f"{where}.{name}")
    return ChatTurn(roles[message.role], text_of(message.content, f"{where}.content"))


def text_of(content: str | Sequence[ContentPart] | None, where: str) -> str:
    """The text of a message; its parts one below the other, as vLLM puts them."""
    if content is None or isinstance(content, str):
        return content or ""
    for at, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            param = f"{where}[{at}].type"
            raise ApiError(400, f"{param} can be text only, not {part.type!r}: the model reads text", param=param)
    return "\n".join(part.text for part in content)


class ChatAnswer(OpenAIAnswer):
    def __init__(self, wanted: ChatRequest, model: str) -> None:
        super().__init__(wanted, model, "chatcmpl", "chat.completion", "chat.completion.chunk")
        self._begun: set[int] = set()

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        made = [
            Choice(
                index,
                AnswerMessage("".join(chunk.text for chunk in chunks)),
                str(chunks[-1].finish_reason),
                chunks[-1].stop_reason,
                _logprobs(chunks, pieces),
            )
            for index, chunks in enumerate(choices)
        ]
        return self.body(made, stats)

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        out = b""
        if index not in self._begun:
            self._begun.add(index)
            out = self.event([ChunkChoice(index, Delta("assistant", ""))])
        text = chunk.text
        trace = self.trace(chunk, pieces)
        if not text and chunk.finish_reason is None and not chunk.logprobs and trace is UNSET:
            return out  # inside a character
        finish = None if chunk.finish_reason is None else str(chunk.finish_reason)
        delta = Delta(content=text) if text else Delta()
        return out + self.event(
            [ChunkChoice(index, delta, finish, chunk.stop_reason, _logprobs([chunk], pieces))], stats, trace
        )


def _logprobs(chunks: Sequence[Chunk], pieces: Pieces) -> Logprobs | None:
    content = [
        _token(token, one, pieces)
        for chunk in chunks
        for token, one in zip(chunk.token_ids, chunk.logprobs, strict=False)
    ]
    return Logprobs(content) if content or any(chunk.logprobs for chunk in chunks) else None


def _token(token: int, found: TokenLogprobs, pieces: Pieces) -> TokenLogprob:
    top = [
        TopLogprob(pieces[other], value, utf8(pieces[other]))
        for other, value in zip(found.top_ids, found.top_logprobs, strict=True)
    ]
    return TokenLogprob(pieces[token], found.chosen, utf8(pieces[token]), top)


def utf8(piece: str) -> list[int] | None:
    """None where the token is a part of a character: its bytes are not known here."""
    return None if "\ufffd" in piece else list(piece.encode())
