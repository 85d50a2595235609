"""Who answers a prompt: our verifier through a client, or ``transformers`` in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from duoactor.bench.methods import Row
from duoactor.bench.reference import Reference
from duoactor.bench.results import Cost, Round
from duoactor.client.async_client import AsyncClient
from protocols import wire
from protocols.errors import ProtocolError, RequestError
from protocols.messages import ChatTurn, FailureCode, RequestStats, RoundStats, Sampling, Telemetry
from protocols.transport import Feed

LATE_S = 0.5  # how long telemetry may lag behind the last chunk


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn's answer. Times in ms from the request."""

    text: str
    token_ids: tuple[int, ...]
    ttft_ms: float
    total_ms: float
    cost: Cost | None = None
    rounds: tuple[Round, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.token_ids).encode()).hexdigest()[:16]


class Answers(Protocol):
    """Something that can be asked; RequestError when this one question cannot be answered."""

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> Answer: ...


@dataclass(slots=True)
class Rounds:
    """Listens to the verifier's telemetry and keeps the rounds of the request under way."""

    feed: Feed
    by_rid: dict[str, list[RoundStats]] = field(default_factory=dict)
    _decoder: wire.Decoder = field(default_factory=lambda: wire.Decoder(Telemetry))
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        while True:
            try:
                message = self._decoder.decode(await self.feed.receive())
            except ProtocolError:
                continue
            if isinstance(message, RoundStats):
                self.by_rid.setdefault(message.rid, []).append(message)
                self._news.set()

    async def take(self, rid: str, count: int) -> list[RoundStats]:
        """The rounds of an answer that is complete; fewer than ``count`` when the socket lost some."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_S):
                while len(self.by_rid.get(rid, ())) < count:
                    self._news.clear()
                    await self._news.wait()
        found = self.by_rid.get(rid, [])
        self.by_rid.clear()
        return found


class Ours:
    """The verifier. ``rounds`` None: no telemetry."""

    def __init__(self, client: AsyncClient, rounds: Rounds | None = None) -> None:
        self.client, self.rounds = client, rounds
        self.plain_prompts = False  # the target has no chat template

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> Answer:
        if not self.plain_prompts:
            try:
                return await self._answer({"messages": tuple(turns)}, row, sampling)
            except RequestError as error:
                if error.code != FailureCode.UNSUPPORTED:
                    raise
        answer = await self._answer({"prompt": "\n\n".join(turn.content for turn in turns)}, row, sampling)
        self.plain_prompts = True  # an unsupported method has raised again by now
        return answer

    async def _answer(self, question: dict[str, Any], row: Row, sampling: Sampling) -> Answer:
        pieces: list[str] = []
        ids: list[int] = []
        first, stats, rid = 0.0, RequestStats(), ""
        started = time.perf_counter()
        stream = self.client.stream(
            **question,
            sampling=sampling,
            method=row.method,
            num_speculative_tokens=row.gamma,
            sequences=row.sequences,
        )
        async for piece in stream:
            if not ids and piece.token_ids:
                first = time.perf_counter()
            pieces.append(piece.text)
            ids += piece.token_ids
            stats, rid = piece.stats or stats, piece.rid
        ended = time.perf_counter()
        rounds = await self.rounds.take(rid, stats.rounds) if self.rounds is not None else []
        return Answer(
            "".join(pieces),
            tuple(ids),
            1000 * ((first or ended) - started),
            1000 * (ended - started),
            cost_of(stats, rounds),
            tuple(_round(one) for one in rounds),
        )


def _round(one: RoundStats) -> Round:
    return Round(
        one.started_us,
        one.forward_us,
        one.wait_us,
        one.wall_us,
        one.draft_us,
        one.draft_steps,
        one.window,
        one.accepted,
        one.committed,
        one.sequences,
        one.gamma,
    )


def cost_of(stats: RequestStats, rounds: Sequence[RoundStats]) -> Cost:
    needed = Counter((one.phase_sequences, one.phase_rank) for one in rounds if one.phase_sequences > 0)
    return Cost(
        rounds=stats.rounds,
        drafted=stats.draft_tokens,
        accepted=stats.accepted_tokens,
        gamma=stats.gamma,
        forward_ms=stats.forward_ms,
        wait_ms=stats.wait_ms,
        overhead_ms=stats.overhead_ms,
        decode_ms=stats.decode_ms,
        draft_ms=sum(one.draft_us for one in rounds) / 1000,
        sequences=stats.sequences_histogram,
        needed=tuple(sorted((k, rank, count) for (k, rank), count in needed.items())),
    )


class Theirs:
    """``transformers``."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> Answer:
        found = await self.reference.generate(turns, row.mode, sampling)
        return Answer(found.text, found.token_ids, found.ttft_ms, found.total_ms)
