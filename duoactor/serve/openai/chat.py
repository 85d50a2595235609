"""``/v1/chat/completions``: OpenAI's parameters as a question, and chunks as OpenAI's answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from duoactor.serve.answers import Pieces, new_id
from duoactor.serve.content import ContentPart, text_of
from duoactor.serve.errors import bad
from duoactor.serve.fields import Ignored
from duoactor.serve.openai.envelope import OpenAIAnswer
from duoactor.serve.openai.messages import ChatMessage, FunctionTool, rendering, turns, use
from duoactor.serve.parameters import Limit, decode, limit
from duoactor.serve.question import Question, asked
from duoactor.serve.thinking import ThinkingParameters
from duoactor.serve.tool_calls.events import Arguments, CallBegan, Event, Parser, Said, Thought
from duoactor.serve.tool_calls.use import Choice, Pick, left_out
from protocols.messages import Chunk, FinishReason, RequestStats, TokenLogprobs


class PredictedContent(msgspec.Struct, frozen=True):
    """OpenAI's predicted output."""

    content: str | tuple[ContentPart, ...]
    type: Literal["content"] = "content"


class ChatRequest(ThinkingParameters, frozen=True, kw_only=True):
    messages: Annotated[tuple[ChatMessage, ...], Meta(min_length=1)]
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: Choice | Pick = "auto"
    parallel_tool_calls: bool | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    prediction: PredictedContent | None = None


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob, frozen=True):
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """In events without the name but at a call's beginning, and with a piece of the arguments."""

    name: str | None = None
    arguments: str | UnsetType = UNSET


class CallAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """``index`` is in events only, and there ``id`` and ``type`` are at a call's beginning only."""

    function: FunctionAnswer
    index: int | UnsetType = UNSET
    id: str | None = None
    type: str | None = None


class ChatDelta(msgspec.Struct, frozen=True):
    """An answer's message, or what an event adds to it."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET  # the same: clients read one or the other
    tool_calls: list[CallAnswer] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatDelta | UnsetType = UNSET
    delta: ChatDelta | UnsetType = UNSET
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


def parse(body: bytes) -> tuple[ChatRequest, Question]:
    wanted, ignored = decode(body, ChatRequest)
    return wanted, question(wanted, ignored)


def question(wanted: ChatRequest, ignored: Ignored) -> Question:
    if wanted.top_logprobs and not wanted.logprobs:
        raise bad("top_logprobs", "needs logprobs to be true")
    # a result's function is known by its call, and templates show no names of people
    named = (at for at, one in enumerate(wanted.messages) if one.name and one.role != "tool")
    ignored.unknown += [f"messages[{at}].name" for at in named] + left_out(wanted.tools)
    most = limit(wanted.max_completion_tokens, "max_completion_tokens", limit(wanted.max_tokens, "max_tokens"))
    sampling = wanted.sampling(max_tokens=most, logprobs=wanted.top_logprobs if wanted.logprobs else -1)
    return dataclasses.replace(
        asked(wanted, ignored, (turns(wanted.messages),), sampling),
        tools=use(wanted.tools, wanted.tool_choice, wanted.parallel_tool_calls),
        rendering=rendering(wanted.messages, wanted.add_generation_prompt, wanted.continue_final_message),
        thinking=wanted.wish,
        prediction="" if wanted.prediction is None else text_of(wanted.prediction.content, "prediction.content"),
    )


class ChatAnswer(OpenAIAnswer):
    def __init__(self, wanted: ChatRequest, model: str, parser: Callable[[], Parser]) -> None:
        super().__init__(wanted, model, "chatcmpl-", ("chat.completion", "chat.completion.chunk"), parser)
        self._calls = [0] * wanted.n  # calls that have begun

    @property
    def own_prompt(self) -> Sequence[int] | UnsetType:
        return self.prompt_ids[0] if self.prompt_ids else UNSET

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        return self.body([self._choice(index, chunks, pieces) for index, chunks in enumerate(choices)], stats)

    def _choice(self, index: int, chunks: Sequence[Chunk], pieces: Pieces) -> ChatChoice:
        found = self._delta(index, self.read(index, chunks))
        calls = UNSET if found.tool_calls is UNSET else [replace(one, index=UNSET) for one in found.tool_calls]
        text = found.content if found.content is not UNSET else None if calls else ""
        message = replace(found, role="assistant", content=text, refusal=None, tool_calls=calls)
        return ChatChoice(
            index=index,
            message=message,
            finish_reason=_finish(chunks[-1], bool(calls)) or "",
            stop_reason=chunks[-1].stop_reason,
            logprobs=logprobs_of(chunks, pieces),
            token_ids=self.ids(chunks),
        )

    def opening(self, index: int) -> bytes:
        return self.event([ChatChoice(index=index, delta=ChatDelta("assistant", ""))], prompt=self.own_prompt)

    def part(self, index: int, chunk: Chunk, pieces: Pieces) -> tuple[ChatChoice, bool]:
        delta = self._delta(index, self.read(index, [chunk]))
        choice = ChatChoice(
            index=index,
            delta=delta,
            finish_reason=_finish(chunk, self._calls[index] > 0),
            stop_reason=chunk.stop_reason,
            logprobs=logprobs_of([chunk], pieces),
            token_ids=self.ids([chunk]),
        )
        return choice, delta != ChatDelta()

    def _delta(self, index: int, events: Sequence[Event]) -> ChatDelta:
        text = thought = ""
        calls: list[CallAnswer] = []
        for event in events:
            match event:
                case Thought(piece):
                    thought += piece
                case Said(piece):
                    text += piece
                case CallBegan(name):
                    begun = FunctionAnswer(name, "")
                    calls.append(CallAnswer(begun, index=self._calls[index], id=new_id("call_"), type="function"))
                    self._calls[index] += 1
                case Arguments(piece):
                    at = self._calls[index] - 1
                    if calls and calls[-1].index == at:  # the call began, or went on, in this chunk too
                        earlier = calls.pop()
                        function = replace(earlier.function, arguments=f"{earlier.function.arguments}{piece}")
                        calls.append(replace(earlier, function=function))
                    else:
                        calls.append(CallAnswer(FunctionAnswer(arguments=piece), index=at))
        return ChatDelta(
            content=text or UNSET,
            reasoning_content=thought or UNSET,
            reasoning=thought or UNSET,
            tool_calls=calls or UNSET,
        )


def _finish(chunk: Chunk, called: bool) -> str | None:
    if called and chunk.finish_reason is FinishReason.STOP:
        return "tool_calls"
    return None if chunk.finish_reason is None else str(chunk.finish_reason)


def logprobs_of(chunks: Sequence[Chunk], pieces: Pieces) -> Logprobs | None:
    """Log-probabilities of the chunks' tokens; None: the request asked for none."""
    content = [
        _token(token, one, pieces)
        for chunk in chunks
        for token, one in zip(chunk.token_ids, chunk.logprobs, strict=False)
    ]
    return Logprobs(content) if content or any(chunk.logprobs for chunk in chunks) else None


def _token(token: int, found: TokenLogprobs, pieces: Pieces) -> TokenLogprob:
    top = [
        TopLogprob(pieces[other].text, value, list(pieces[other].octets))
        for other, value in zip(found.top_ids, found.top_logprobs, strict=True)
    ]
    return TokenLogprob(pieces[token].text, found.chosen, list(pieces[token].octets), top)
