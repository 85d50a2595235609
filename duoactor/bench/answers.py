"""Sources of answers: our verifier through a client, or another engine (:mod:`duoactor.bench.reference`)."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from duoactor.bench.methods import Row
from duoactor.client.async_client import AsyncClient
from duoactor.client.stream import AsyncStream
from protocols.errors import RequestError
from protocols.messages import ChatTurn, Chunk, FailureCode, RequestStats, Sampling


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One turn's answer. Times in ms from the request."""

    text: str
    token_ids: tuple[int, ...]
    ttft_ms: float
    total_ms: float
    stats: RequestStats | None = None  # None: not ours
    chunks: tuple[tuple[float, int], ...] = ()  # when each chunk came, and its tokens

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.token_ids).encode()).hexdigest()[:16]


class Answers(Protocol):
    """A source of answers. RequestError for a question that it cannot answer."""

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> TimedAnswer: ...


class Ours:
    """The verifier."""

    def __init__(self, client: AsyncClient, show: Callable[[Chunk], None] = lambda chunk: None) -> None:
        """``show``: called with every chunk."""
        self.client, self.show = client, show
        self.plain_prompts = False  # the target has no chat template

    def stream(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> AsyncStream:
        """A stream for a conversation, or for a plain prompt where the target has no chat template."""
        question: dict[str, Any] = {"messages": tuple(turns)}
        if self.plain_prompts:
            question = {"prompt": "\n\n".join(turn.content for turn in turns)}
        return self.client.stream(
            **question,
            sampling=sampling,
            method=row.method,
            num_speculative_tokens=row.gamma,
            sequences=row.sequences,
            cache_salt=uuid.uuid4().hex,  # each row gets the same prompt: none may find another's in a cache
        )

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> TimedAnswer:
        try:
            return await self._read(self.stream(row, turns, sampling))
        except RequestError as error:
            if self.plain_prompts or error.code != FailureCode.UNSUPPORTED:
                raise
        self.plain_prompts = True
        try:
            return await self._read(self.stream(row, turns, sampling))
        except RequestError:
            self.plain_prompts = False  # it was the method that is not supported
            raise

    async def _read(self, stream: AsyncStream) -> TimedAnswer:
        pieces: list[str] = []
        ids: list[int] = []
        chunks: list[tuple[float, int]] = []
        stats, started = RequestStats(), time.perf_counter()
        async for piece in stream:
            if piece.token_ids:
                chunks.append((1000 * (time.perf_counter() - started), len(piece.token_ids)))
            pieces.append(piece.text)
            ids += piece.token_ids
            self.show(piece)
            stats = piece.stats or stats
        total_ms = 1000 * (time.perf_counter() - started)
        first_ms = chunks[0][0] if chunks else total_ms
        return TimedAnswer("".join(pieces), tuple(ids), first_ms, total_ms, stats, tuple(chunks))
