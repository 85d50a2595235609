"""``/v1/completions``: OpenAI's parameters as a question, and chunks as OpenAI's answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from duoactor.serve.answers import Pieces
from duoactor.serve.errors import bad
from duoactor.serve.openai.envelope import OpenAIAnswer
from duoactor.serve.parameters import Limit, decode, limit
from duoactor.serve.question import Prompt, Question
from duoactor.serve.structure import StructureParameters, shape_of
from duoactor.serve.tool_calls.events import Parser
from protocols.messages import Chunk, RequestStats


class CompletionRequest(StructureParameters, frozen=True, kw_only=True):
    prompt: Annotated[str | tuple[Any, ...], Meta(description="a text, token ids, or an array of either")]
    max_tokens: Limit = 16
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: TextLogprobs | None = None


def parse(body: bytes) -> tuple[CompletionRequest, Question]:
    wanted, ignored = decode(body, CompletionRequest)
    logprobs = -1 if wanted.logprobs is None else wanted.logprobs
    question = Question(
        prompts=_prompts(wanted.prompt),
        sampling=wanted.sampling(max_tokens=limit(wanted.max_tokens, "max_tokens"), logprobs=logprobs),
        shape=shape_of(wanted),
        seeded=wanted.seed is not None,
        n=wanted.n,
        how=wanted,
        trace=wanted.trace,
        ignored=ignored,
    )
    return wanted, question


def _prompts(given: str | Sequence[Any]) -> tuple[Prompt, ...]:
    if isinstance(given, str):
        return (given,)
    if not given:
        raise bad("prompt", "is an empty array; give at least one prompt")
    for kind, several in ((int, False), (str, True), (list[int], True)):
        try:
            found = msgspec.convert(given, tuple[kind, ...])  # type: ignore[valid-type]
        except msgspec.ValidationError:
            continue
        return tuple(one if isinstance(one, str) else tuple(one) for one in found) if several else (found,)
    raise bad("prompt", "can be a text, an array of texts, token ids or arrays of token ids")


class CompletionAnswer(OpenAIAnswer):
    def __init__(self, wanted: CompletionRequest, model: str, parser: Callable[[], Parser]) -> None:
        super().__init__(wanted, model, "cmpl-", ("text_completion", "text_completion"), parser)
        self._lengths: dict[int, int] = {}  # of each choice's text so far

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        return self.body([self._choice(index, chunks, pieces) for index, chunks in enumerate(choices)], stats)

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        trace = self.trace(chunk, pieces)
        self.count(index, chunk)
        if not chunk.text and chunk.finish_reason is None and not chunk.logprobs and trace is UNSET:
            return b""  # inside a character
        return self.event([self._choice(index, [chunk], pieces)], stats, trace)

    def _choice(self, index: int, chunks: Sequence[Chunk], pieces: Pieces) -> CompletionChoice:
        start = self._lengths.get(index, 0)
        text = "".join(chunk.text for chunk in chunks)
        self._lengths[index] = start + len(text)
        last = chunks[-1]
        return CompletionChoice(
            index,
            text,
            None if last.finish_reason is None else str(last.finish_reason),
            last.stop_reason,
            _logprobs(chunks, pieces, start) if any(chunk.logprobs for chunk in chunks) else None,
        )


def _logprobs(chunks: Sequence[Chunk], pieces: Pieces, at: int) -> TextLogprobs:
    """``at``: how many characters of the choice's text stand before these chunks."""
    made = TextLogprobs([], [], [], [])
    for chunk in chunks:
        for token, text, found in zip(chunk.token_ids, chunk.pieces, chunk.logprobs, strict=False):
            made.tokens.append(pieces[token].name)
            made.token_logprobs.append(found.chosen)
            made.top_logprobs.append(
                {pieces[one].name: value for one, value in zip(found.top_ids, found.top_logprobs, strict=True)}
                | {pieces[token].name: found.chosen}
            )
            made.text_offset.append(at)
            at += len(text)
    return made
