"""Who answers a prompt: our verifier through a client, or ``transformers`` in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from duoactor.bench.methods import Row
from duoactor.bench.results import Cost, Round
from protocols import wire
from protocols.errors import DuoactorError, ProtocolError, RequestError
from protocols.messages import ChatTurn, FailureCode, RequestStats, RoundStats, Sampling, Telemetry
from protocols.transport import Feed

LATE_S = 0.5  # how long telemetry may lag behind the last chunk
REPLY_LIMIT = 2**26  # bytes of one line from the reference


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


class Piece(Protocol):
    """What is read of a chunk."""

    @property
    def rid(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> tuple[int, ...]: ...
    @property
    def stats(self) -> RequestStats | None: ...


class Streams(Protocol):
    """What is asked of :class:`duoactor.AsyncClient`."""

    def stream(
        self,
        prompt: str = "",
        *,
        messages: Sequence[Any] = (),
        sampling: Sampling | None = None,
        method: str = "",
        num_speculative_tokens: int = 0,
        sequences: int = 0,
    ) -> AsyncIterator[Piece]: ...


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

    def __init__(self, client: Streams, rounds: Rounds | None = None) -> None:
        self.client, self.rounds = client, rounds
        self.plain_prompts = False  # the target has no chat template

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> Answer:
        if not self.plain_prompts:
            try:
                return await self._answer({"messages": tuple(turns)}, row, sampling)
            except RequestError as error:
                if error.code != FailureCode.UNSUPPORTED or "chat template" not in str(error):
                    raise
                self.plain_prompts = True
        return await self._answer({"prompt": "\n\n".join(turn.content for turn in turns)}, row, sampling)

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


class Reference:
    """``actors.engines.reference_server`` as a child; it sleeps while others are measured."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.device = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, load: dict[str, Any]) -> AsyncIterator[Reference]:
        """``load`` is what the server's ``Load`` holds. Raises DuoactorError when it cannot run."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "actors.engines.reference_server"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(load.get("threads", 1))},
            start_new_session=True,  # Ctrl-C reaches us alone
            limit=REPLY_LIMIT,
        )
        try:
            reference = cls(process)
            ready = await reference._exchange(load)
            if ready.get("error"):
                raise DuoactorError(f"the transformers rows cannot run: {ready['error']}")
            reference.device = str(ready["device"])
            yield reference
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _exchange(self, document: object) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(msgspec.json.encode(document) + b"\n")
            await self.process.stdin.drain()
            line = await self.process.stdout.readline()
        except ConnectionError:
            line = b""
        if not line:
            code = await self.process.wait()
            raise DuoactorError(
                f"the transformers process ended (exit code {code}): leave its rows out with --methods, "
                "or see `python -m actors.engines.reference_server`"
            )
        found: dict[str, Any] = msgspec.json.decode(line)
        return found

    async def answer(self, row: Row, turns: Sequence[ChatTurn], sampling: Sampling) -> Answer:
        found = await self._exchange(
            {
                "turns": [(turn.role, turn.content) for turn in turns],
                "mode": row.mode,
                "max_tokens": sampling.max_tokens,
                "temperature": sampling.temperature,
                "seed": sampling.seed % 2**63,
            }
        )
        if found["error"]:
            raise RequestError(FailureCode.UNSUPPORTED, found["error"])
        return Answer(found["text"], tuple(found["token_ids"]), found["ttft_ms"], found["total_ms"])
