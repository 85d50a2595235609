"""Chunks as Ollama's answers: a line of JSON for each, and the last with the figures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from duoactor.serve.answers import Answer, Pieces, new_id, stamp
from duoactor.serve.errors import ApiError
from duoactor.serve.ollama.requests import OllamaParameters
from duoactor.serve.openai.chat import TokenLogprob, logprobs_of
from duoactor.serve.tool_calls.events import Arguments, CallBegan, CallEnded, Event, Parser, Said, Thought
from protocols.messages import Chunk, RequestStats

NS = 1e6  # nanoseconds in a millisecond


class CalledFunction(msgspec.Struct, frozen=True):
    index: int
    name: str
    arguments: dict[str, Any]


class Called(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction


Parts = tuple[str, str, list[Called]]  # text, thought and whole calls
NOTHING: Parts = ("", "", [])


class SaidMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[Called] | UnsetType = UNSET


class AnswerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an answer. The last is ``done`` and has durations in nanoseconds."""

    model: str
    created_at: str
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class ChatLine(AnswerLine, frozen=True, kw_only=True):
    message: SaidMessage


class GenerateLine(AnswerLine, frozen=True, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class OllamaAnswer(Answer):
    """An answer of lines, or of one."""

    media_type = "application/x-ndjson"

    def __init__(self, wanted: OllamaParameters, model: str, parser: Callable[[], Parser]) -> None:
        super().__init__(model, "", parser)
        self._scored = wanted.logprobs
        self._call: tuple[str, list[str]] | None = None  # the open call's name and pieces of its arguments
        self._calls = 0  # complete calls
        self._reason = "stop"

    @abstractmethod
    def line(self, text: str, thought: str, calls: list[Called], **rest: Any) -> AnswerLine:
        """A line with pieces of the answer."""

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        (chunks,) = choices
        self._note(chunks[-1])
        return self._line(self._said(self.read(0, chunks)), **self._scores(chunks, pieces), **self._figures(stats))

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        self._note(chunk)
        said, scores = self._said(self.read(index, [chunk])), self._scores([chunk], pieces)
        return self._line(said, **scores) + b"\n" if any(said) or scores else b""

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        return self._line(NOTHING, **self._figures(stats)) + b"\n"

    def fail(self, error: ApiError) -> bytes:
        return msgspec.json.encode(error.ollama()) + b"\n"

    def loaded(self) -> bytes:
        """The answer to a request without a prompt."""
        return self._line(NOTHING, done=True, done_reason="load")

    def _line(self, said: Parts, **rest: Any) -> bytes:
        return msgspec.json.encode(self.line(*said, model=self.model, created_at=stamp(), **rest))

    def _note(self, chunk: Chunk) -> None:
        self._reason = "stop" if chunk.finish_reason is None else str(chunk.finish_reason)

    def _said(self, events: Sequence[Event]) -> Parts:
        """Text, thought and whole calls. A call whose arguments are no JSON object is text, as the model wrote it."""
        text = thought = ""
        calls: list[Called] = []
        for event in events:
            match event:
                case Thought(piece):
                    thought += piece
                case Said(piece):
                    text += piece
                case CallBegan(name):
                    self._call = name, []
                case Arguments(piece):
                    assert self._call is not None
                    self._call[1].append(piece)
                case CallEnded(whole):
                    assert self._call is not None
                    name, arguments = self._call[0], "".join(self._call[1])
                    try:
                        given = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
                    except (msgspec.MsgspecError, RecursionError):
                        text += f"{name} {arguments}" if whole else ""
                        continue
                    if whole:
                        calls.append(Called(new_id("call_"), CalledFunction(self._calls, name, given)))
                        self._calls += 1
        return text, thought, calls

    def _scores(self, chunks: Sequence[Chunk], pieces: Pieces) -> dict[str, Any]:
        found = logprobs_of(chunks, pieces) if self._scored else None
        return {} if found is None else {"logprobs": found.content}

    def _figures(self, stats: Sequence[RequestStats]) -> dict[str, Any]:
        (one,) = stats
        first, rest = round(one.time_to_first_token_ms * NS), round(one.decode_ms * NS)
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": first + rest,
            "load_duration": 0,
            "prompt_eval_count": one.prompt_tokens,
            "prompt_eval_duration": first,
            "eval_count": one.completion_tokens,
            "eval_duration": rest,
        }


class OllamaChatAnswer(OllamaAnswer):
    def line(self, text: str, thought: str, calls: list[Called], **rest: Any) -> ChatLine:
        message = SaidMessage(content=text, thinking=thought or UNSET, tool_calls=calls or UNSET)
        return ChatLine(message=message, **rest)


class OllamaGenerateAnswer(OllamaAnswer):
    def line(self, text: str, thought: str, calls: list[Called], **rest: Any) -> GenerateLine:
        return GenerateLine(response=text, thinking=thought or UNSET, **rest)
