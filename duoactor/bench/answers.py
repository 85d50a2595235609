"""Who answers a prompt: our verifier through a client, or ``transformers`` in a process of its own."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from duoactor.bench.methods import Row
from duoactor.bench.reference import Reference
from duoactor.bench.results import Cost, Round
from duoactor.bench.rounds import Rounds, cost_of, round_of
from duoactor.client.async_client import AsyncClient
from protocols.errors import RequestError
from protocols.messages import ChatTurn, FailureCode, RequestStats, Sampling


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
            cache_salt=uuid.uuid4().hex,  # the same prompt is asked by every row: none may copy what another was told
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
            tuple(round_of(one) for one in rounds),
        )


class Theirs:
    """``transformers``."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> Answer:
        found = await self.reference.generate(turns, row.mode, sampling)
        return Answer(found.text, found.token_ids, found.ttft_ms, found.total_ms)
