"""The envelope of OpenAI's two completion APIs."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from duoactor.serve.answers import Answer, Pieces, ThoughtDetails, Timings, TokenDetails, figures
from duoactor.serve.errors import ApiError
from duoactor.serve.parameters import SamplingParameters
from duoactor.serve.stream import DONE, event
from duoactor.serve.tool_calls.events import Parser
from duoactor.serve.trace import ChunkTrace, traced
from protocols.messages import Chunk, RequestStats

C = TypeVar("C")


class CompletionDetails(ThoughtDetails, frozen=True):
    accepted_prediction_tokens: int | UnsetType = UNSET  # only if the request has a prediction
    rejected_prediction_tokens: int | UnsetType = UNSET


class CompletionUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: TokenDetails
    completion_tokens_details: CompletionDetails


class Envelope(msgspec.Struct, Generic[C], frozen=True, kw_only=True):
    """A completion, or one event of it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[C]
    usage: CompletionUsage | UnsetType | None = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET  # llama-server's
    trace: ChunkTrace | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET  # vLLM's, of a chat


class OpenAIAnswer(Answer):
    """An answer of choices in envelopes."""

    def __init__(
        self, wanted: SamplingParameters, model: str, prefix: str, kinds: tuple[str, str], parser: Callable[[], Parser]
    ) -> None:
        """``kinds``: what a completion and an event of it are called."""
        super().__init__(model, prefix, parser, wanted.n)
        self._whole, self._part = kinds
        self._n = wanted.n
        self._with_usage = wanted.stream_options.include_usage
        self._always = self._with_usage and wanted.stream_options.continuous_usage_stats
        self._running: dict[int, RequestStats] = {}  # statistics so far, by choice
        self._traced = wanted.trace
        self._identified = wanted.return_token_ids
        self._timed, self._began = wanted.timings_per_token and wanted.n == 1, time.monotonic()

    def body(self, choices: list[C], stats: Sequence[RequestStats]) -> bytes:
        return msgspec.json.encode(
            Envelope(
                id=self.id,
                object=self._whole,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=self._usage(stats),
                metrics=figures(stats),
                timings=Timings.of(stats[0]) if self._timed else UNSET,
                prompt_token_ids=self.own_prompt,
            )
        )

    @property
    def own_prompt(self) -> Sequence[int] | UnsetType:
        """The token ids of the only prompt, where they stand next to the choices."""
        return UNSET

    def _usage(self, stats: Sequence[RequestStats]) -> CompletionUsage:
        """Usage of the choices of one request; ``n`` of them answer each prompt."""
        prompt = sum(one.prompt_tokens for one in stats[:: self._n])
        made = sum(one.completion_tokens for one in stats)
        cached = TokenDetails(sum(one.cached_tokens for one in stats[:: self._n]))
        details = CompletionDetails(self.thought_tokens)
        if predicted := sum(one.prediction_tokens for one in stats):
            agreed = sum(one.predicted_tokens for one in stats)
            details = CompletionDetails(self.thought_tokens, agreed, max(0, predicted - agreed))
        return CompletionUsage(prompt, made, prompt + made, cached, details)

    def ids(self, chunks: Sequence[Chunk]) -> list[int] | UnsetType:
        """A choice's token ids, if the request asks for them."""
        return [token for chunk in chunks for token in chunk.token_ids] if self._identified else UNSET

    def opening(self, index: int) -> bytes:
        """The events before a choice's first chunk."""
        return b""

    @abstractmethod
    def part(self, index: int, chunk: Chunk, pieces: Pieces) -> tuple[Any, bool]:
        """A choice's part for one chunk, and whether it has text."""

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        begins = index not in self._running
        took_ms = 1000 * (time.monotonic() - self._began)
        first = RequestStats("", chunk.prompt_tokens, 0, took_ms, cached_tokens=chunk.cached_tokens)
        known = self._running.get(index, first)
        made = known.completion_tokens + len(chunk.token_ids)
        self._running[index] = msgspec.structs.replace(
            known, completion_tokens=made, decode_ms=took_ms - known.time_to_first_token_ms
        )
        out = self.opening(index) if begins else b""
        choice, said = self.part(index, chunk, pieces)
        trace = traced(chunk, pieces) if self._traced and chunk.token_ids else UNSET
        if not said and chunk.finish_reason is None and not (chunk.logprobs or self._identified) and trace is UNSET:
            return out  # inside a character, or inside a possible call
        return out + self.event([choice], stats, trace)

    def event(
        self,
        choices: list[C],
        stats: Sequence[RequestStats] = (),
        trace: ChunkTrace | UnsetType = UNSET,
        prompt: Sequence[int] | UnsetType = UNSET,
    ) -> bytes:
        """``stats`` of all choices with the very last choice. The figures go with the last event, which is another
        one if usage was asked for."""
        last = bool(stats) and not (self._with_usage and choices)
        usage = self._usage(stats) if last else None
        if self._always and not last:
            usage = self._usage([self._running[index] for index in sorted(self._running)])
        made = Envelope(
            id=self.id,
            object=self._part,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage if self._with_usage else UNSET,
            metrics=figures(stats) if last else UNSET,
            timings=Timings.of(stats[0] if last else self._running[0]) if self._timed and self._running else UNSET,
            trace=trace,
            prompt_token_ids=prompt,
        )
        return event(msgspec.json.encode(made))

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        return (self.event([], stats) if self._with_usage else b"") + DONE

    def fail(self, error: ApiError) -> bytes:
        return event(msgspec.json.encode(error.openai())) + DONE
