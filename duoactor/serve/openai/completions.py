"""``/v1/completions``: OpenAI's parameters as a question, and chunks as OpenAI's answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from duoactor.serve.answers import Pieces
from duoactor.serve.errors import bad
from duoactor.serve.fields import Ignored
from duoactor.serve.fill import Gap
from duoactor.serve.openai.envelope import OpenAIAnswer
from duoactor.serve.parameters import Limit, decode, limit
from duoactor.serve.question import Prompt, Question, asked
from duoactor.serve.structure import StructureParameters
from duoactor.serve.tool_calls.events import Parser
from protocols.messages import Chunk, RequestStats, Tokenized, TokenLogprobs


class CompletionRequest(StructureParameters, frozen=True, kw_only=True):
    prompt: Annotated[str | tuple[Any, ...], Meta(description="a text, token ids, or an array of either")]
    max_tokens: Limit = 16
    max_completion_tokens: Limit | None = None  # the chat API's name, which guidellm sends with the other
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool = False
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None  # vLLM's parameter
    suffix: str = ""  # text after the answer

    @property
    def most(self) -> int:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TextLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: TextLogprobs | None = None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET  # a stream has them with its first event


def parse(body: bytes) -> tuple[CompletionRequest, Question]:
    wanted, ignored = decode(body, CompletionRequest)
    return wanted, question(wanted, ignored)


def question(wanted: CompletionRequest, ignored: Ignored) -> Question:
    counts = (wanted.logprobs, wanted.prompt_logprobs)
    logprobs = max((count for count in counts if count is not None), default=-1)
    scores = wanted.echo or wanted.prompt_logprobs is not None
    most = 0 if scores and wanted.most == 0 else limit(wanted.most, "max_tokens")
    sampling = wanted.sampling(max_tokens=max(1, most), logprobs=logprobs)
    found = asked(wanted, ignored, prompts(wanted.prompt), sampling)
    if scores:
        param = "echo" if wanted.echo else "prompt_logprobs"
        if wanted.stream:
            raise bad(param, "cannot be streamed: leave stream out")
        if found.shape is not None:
            raise bad(param, f"cannot be had with {found.shape.param}")
        if wanted.suffix:
            raise bad(param, "cannot be had with suffix")
    return dataclasses.replace(found, scores=scores, gap=Gap(wanted.suffix) if wanted.suffix else None)


def prompts(given: str | Sequence[Any]) -> tuple[Prompt, ...]:
    """Prompts of a request: texts, or token ids. ApiError (400) for a mixture."""
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
        self._wanted = wanted
        self._lengths: dict[int, int] = {}  # length of each choice's text so far

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        if not self.prompts:
            return self.body([self._choice(index, chunks, pieces) for index, chunks in enumerate(choices)], stats)
        asked = [self.prompts[index // self._wanted.n] for index in range(len(choices))]
        made = [self._scored(index, choices[index], pieces, prompt) for index, prompt in enumerate(asked)]
        return self.body(made, [_counted(one, prompt, self._wanted) for one, prompt in zip(stats, asked, strict=True)])

    def part(self, index: int, chunk: Chunk, pieces: Pieces) -> tuple[CompletionChoice, bool]:
        return self._choice(index, [chunk], pieces), bool(chunk.text)

    def _choice(self, index: int, chunks: Sequence[Chunk], pieces: Pieces) -> CompletionChoice:
        asked = self._asked(index) if index not in self._lengths else UNSET
        start = self._lengths.get(index, 0)
        text = "".join(chunk.text for chunk in chunks)
        self._lengths[index] = start + len(text)
        last = chunks[-1]
        return CompletionChoice(
            index,
            text,
            None if last.finish_reason is None else str(last.finish_reason),
            last.stop_reason,
            _logprobs(_places(chunks), pieces, start) if any(chunk.logprobs for chunk in chunks) else None,
            token_ids=self.ids(chunks),
            prompt_token_ids=asked,
        )

    def _asked(self, index: int) -> Sequence[int] | UnsetType:
        """The tokens of a choice's prompt, if the request asks for them."""
        return self.prompt_ids[index // self._wanted.n] if self.prompt_ids else UNSET

    def _scored(self, index: int, chunks: Sequence[Chunk], pieces: Pieces, prompt: Tokenized) -> CompletionChoice:
        """A choice with the prompt's own tokens: the first has no probability, the others are dictated output."""
        wanted, ids = self._wanted, prompt.token_ids
        places = list(_places(chunks))
        scores = [None, *(place.found for place in places[: len(ids) - 1])]
        own = [TextToken(token, pieces[token].text, found) for token, found in zip(ids, scores, strict=True)]
        behind = places[len(ids) - 1 :] if wanted.most else []
        last = chunks[-1]
        return CompletionChoice(
            index,
            (prompt.text if wanted.echo else "") + "".join(place.text for place in behind),
            str(last.finish_reason) if wanted.most else "length",
            last.stop_reason,
            None if wanted.logprobs is None else _logprobs([*own, *behind] if wanted.echo else behind, pieces, 0),
            UNSET if wanted.prompt_logprobs is None else [_vllm(place, pieces) for place in own],
            [place.token for place in behind] if wanted.return_token_ids else UNSET,
            self._asked(index),
        )


class TextToken(msgspec.Struct, frozen=True):
    """A token of a text, and its log-probabilities where it has some."""

    token: int
    text: str
    found: TokenLogprobs | None


def _places(chunks: Sequence[Chunk]) -> Iterator[TextToken]:
    for chunk in chunks:
        for token, text, found in zip_longest(chunk.token_ids, chunk.pieces, chunk.logprobs):
            yield TextToken(token, text, found)


def _counted(stats: RequestStats, prompt: Tokenized, wanted: CompletionRequest) -> RequestStats:
    """Counts for ``usage``: dictated tokens are the prompt's."""
    length = len(prompt.token_ids)
    made = stats.completion_tokens - length + 1 if wanted.most else 0
    return replace(stats, prompt_tokens=length, completion_tokens=made)


def _logprobs(places: Iterable[TextToken], pieces: Pieces, at: int) -> TextLogprobs:
    """``at``: how many characters of the choice's text stand before these tokens."""
    made = TextLogprobs([], [], [], [])
    for place in places:
        made.tokens.append(pieces[place.token].name)
        made.text_offset.append(at)
        at += len(place.text)
        top: dict[str, float] | None = None
        if place.found is not None:
            likeliest = zip(place.found.top_ids, place.found.top_logprobs, strict=True)
            top = {pieces[token].name: value for token, value in likeliest}
            top[pieces[place.token].name] = place.found.chosen
        made.token_logprobs.append(None if place.found is None else place.found.chosen)
        made.top_logprobs.append(top)
    return made


def _vllm(place: TextToken, pieces: Pieces) -> dict[str, dict[str, Any]] | None:
    """vLLM's shape: by token id, the chosen one's first."""
    if place.found is None:
        return None
    values = {place.token: place.found.chosen} | dict(zip(place.found.top_ids, place.found.top_logprobs, strict=True))
    ranks = {token: rank for rank, token in enumerate(place.found.top_ids, 1)}
    return {
        str(token): {"logprob": value, "rank": ranks.get(token), "decoded_token": pieces[token].name}
        for token, value in values.items()
    }
