"""Chunks as llama-server's answers: a body, or events of which the last says how it ended and how long it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from duoactor.serve.answers import Answer, Pieces, Timings
from duoactor.serve.errors import ApiError
from duoactor.serve.llama.requests import LlamaParameters, sampling_named
from duoactor.serve.stream import event
from duoactor.serve.tool_calls.events import Parser
from protocols.messages import Chunk, FinishReason, RequestStats, Sampling


class Probability(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[Probability] | UnsetType = UNSET


class CompletionPart(msgspec.Struct, frozen=True, kw_only=True):
    """An event before the last."""

    index: int
    content: str
    tokens: list[int] = []
    stop: bool = False
    completion_probabilities: list[Probability] | UnsetType = UNSET


class WholeCompletion(CompletionPart, frozen=True, kw_only=True):
    """A body, or the last event."""

    stop: bool = True
    model: str
    prompt: str
    generation_settings: dict[str, Any]
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    has_new_line: bool
    truncated: bool = False  # a prompt that is too long is refused
    stop_type: str
    stopping_word: str
    timings: Timings


class LlamaAnswer(Answer):
    def __init__(self, wanted: LlamaParameters, model: str, parser: Callable[[], Parser]) -> None:
        super().__init__(model, "", parser)
        self._wanted = wanted
        self._lines: set[int] = set()  # choices with a line's end in them

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        made = [self._whole(at, chunks, stats[at], pieces, chunks) for at, chunks in enumerate(choices)]
        return msgspec.json.encode(made[0] if len(made) == 1 else made)

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        content = self._text(index, [chunk])
        out = b""
        if content or chunk.logprobs:
            ids = list(chunk.token_ids)
            part = CompletionPart(
                index=index, content=content, tokens=ids, completion_probabilities=self._scores([chunk], pieces)
            )
            out = event(msgspec.json.encode(part))
        if chunk.stats is None:
            return out
        return out + event(msgspec.json.encode(self._whole(index, [chunk], chunk.stats, pieces, ())))

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        return b""

    def fail(self, error: ApiError) -> bytes:
        return event(msgspec.json.encode(error.openai()))

    def _text(self, index: int, chunks: Sequence[Chunk]) -> str:
        text = "" if self._wanted.n_predict == 0 else "".join(chunk.text for chunk in chunks)
        if "\n" in text:
            self._lines.add(index)
        return text

    def _whole(
        self, index: int, ended: Sequence[Chunk], stats: RequestStats, pieces: Pieces, said: Sequence[Chunk]
    ) -> Any:
        """``said``: the chunks of the text."""
        last, content = ended[-1], self._text(index, said)
        shown = self._wanted.return_tokens and self._wanted.n_predict != 0
        word = last.stop_reason if isinstance(last.stop_reason, str) else ""
        limited = last.finish_reason is FinishReason.LENGTH
        made = WholeCompletion(
            index=index,
            content=content,
            tokens=[token for chunk in said for token in chunk.token_ids] if shown else [],
            completion_probabilities=self._scores(said, pieces),
            model=self.model,
            prompt=self._wanted.text,
            generation_settings=_settings(self.sampling, self._wanted),
            tokens_predicted=stats.completion_tokens if self._wanted.n_predict else 0,
            tokens_evaluated=stats.prompt_tokens,
            tokens_cached=stats.cached_tokens,
            has_new_line=index in self._lines,
            stop_type="limit" if limited else "word" if word else "eos",
            stopping_word=word,
            timings=Timings.of(stats),
        )
        return _fields(made, self._wanted.response_fields) if self._wanted.response_fields else made

    def _scores(self, chunks: Sequence[Chunk], pieces: Pieces) -> list[Probability] | UnsetType:
        if not self._wanted.n_probs:
            return UNSET
        made = []
        for chunk in chunks:
            for token, found in zip(chunk.token_ids, chunk.logprobs, strict=False):
                likeliest = zip(found.top_ids, found.top_logprobs, strict=True)
                top = [_probability(other, value, pieces) for other, value in likeliest]
                chosen = _probability(token, found.chosen, pieces)
                made.append(msgspec.structs.replace(chosen, top_logprobs=top))
        return made


def _probability(token: int, value: float, pieces: Pieces) -> Probability:
    piece = pieces[token]
    return Probability(id=token, token=piece.text, bytes=list(piece.octets), logprob=value)


def _settings(sampling: Sampling, wanted: LlamaParameters) -> dict[str, Any]:
    return {
        "n_predict": wanted.n_predict,
        "max_tokens": wanted.n_predict,
        "seed": sampling.seed,
        **sampling_named(sampling),
        "repeat_last_n": -1,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": list(sampling.stop),
        "ignore_eos": sampling.ignore_eos,
        "stream": wanted.stream,
        "n_probs": wanted.n_probs,
    }


def _fields(made: WholeCompletion, names: Sequence[str]) -> dict[str, Any]:
    """The named fields alone; one with a slash is in an object, and comes without it."""
    found: dict[str, Any] = {}
    for name in names:
        value: Any = msgspec.to_builtins(made)
        for step in name.split("/"):
            value = value.get(step, UNSET) if isinstance(value, dict) else UNSET
        if value is not UNSET:
            found[name] = value
    return found
