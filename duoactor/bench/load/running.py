"""Runs cells: methods in turns at every load, so that a machine that others use too favours none."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from duoactor.bench.answers import Ours, digest
from duoactor.bench.load.arrivals import CLOSED, rate_of, requests, starts
from duoactor.bench.load.cells import LONG, LONG_TOKENS, Cell, Told
from duoactor.bench.methods import VANILLA, Row, rotated
from duoactor.bench.runner import Show
from duoactor.bench.store import Store
from duoactor.bench.suites import Prompt
from duoactor.client.stream import AsyncStream
from protocols.errors import RequestError
from protocols.messages import ChatTurn, RequestStats, Sampling

Ask = Callable[[str], Awaitable[Told]]  # by a prompt's id
Clock = Callable[[], float]  # milliseconds


@dataclass(frozen=True, slots=True)
class Loads:
    """One cell after the other: a load is run with every row before the next, the repeats of a load together."""

    arrivals: Sequence[str]
    streams: Sequence[int]
    rows: Sequence[Row]
    repeats: int

    @property
    def units(self) -> int:
        return len(self.arrivals) * len(self.streams) * len(self.rows) * self.repeats

    def __iter__(self) -> Iterator[tuple[str, int, int, Row]]:
        for arrivals in self.arrivals:
            for streams in self.streams:
                for repeat in range(self.repeats):
                    for row in rotated(self.rows, repeat):
                        yield arrivals, streams, repeat, row


@dataclass(slots=True)
class LoadBench:
    """``long``: the token ids of the long prompt."""

    store: Store[Cell]
    prompts: Sequence[Prompt]
    long: Sequence[int]
    sampling: Sampling
    ours: Ours
    show: Show = lambda text, done, count: None
    _texts: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._texts = {prompt.id: prompt.turns[0] for prompt in self.prompts}

    async def run(self, loads: Loads) -> None:
        """All cells that the store does not have yet."""
        for number, (arrivals, streams, repeat, row) in enumerate(loads):
            if (arrivals, streams, row.name, repeat) in self.store.done:
                continue
            self.show(f"{streams} streams, {arrivals}, {row.label}, repeat {repeat + 1}", number, loads.units)
            self.store.add([await self._cell(arrivals, streams, repeat, row)])
        self.show("", loads.units, loads.units)

    async def _cell(self, arrivals: str, streams: int, repeat: int, row: Row) -> Cell:
        asked = requests(self.prompts, streams)
        began = time.perf_counter()

        def clock() -> float:
            return round(1000 * (time.perf_counter() - began), 3)

        rids: dict[int, str] = {}  # by the answer's identity

        async def ask(prompt: str) -> Told:
            told, rid = await read(prompt, self._stream(prompt, row), clock)
            rids[id(told)] = rid
            return told

        rate = 0.0
        if arrivals == CLOSED:
            answers = await closed(asked, streams, ask)
        else:
            rate = rate_of(self.store.runs, VANILLA, streams)
            answers = await by_themselves(asked, starts(arrivals, len(asked), streams, rate, repeat), ask)
        counted = [await self._counted(told, rids[id(told)]) for told in answers]
        return Cell(
            method=row.name, arrivals=arrivals, streams=streams, repeat=repeat, rate=rate, answers=tuple(counted)
        )

    async def _counted(self, told: Told, rid: str) -> Told:
        """With its turns: several rounds may share a chunk."""
        rounds = await self.ours.rounds.take(rid, told.rounds) if self.ours.rounds is not None else []
        if not rounds:
            return told
        ends = itertools.accumulate((one.wall_us / 1000 for one in rounds), initial=told.first)
        return msgspec.structs.replace(
            told,
            turns=tuple(round(end, 3) for end in ends),
            streams=tuple(one.streams for one in rounds),
            rows=tuple(one.rows for one in rounds),
        )

    def _stream(self, prompt: str, row: Row) -> AsyncStream:
        if prompt == LONG:
            return self.ours.ask({"prompt": self.long}, row, self.sampling)
        return self.ours.stream(row, (ChatTurn("user", self._texts[prompt]),), self.sampling)


async def closed(asked: Sequence[str], streams: int, ask: Ask) -> list[Told]:
    """So many streams, each of which takes the next request as soon as it was answered."""
    told: list[Told] = []
    left = iter(asked)

    async def stream() -> None:
        for prompt in left:
            told.append(await ask(prompt))

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return told


async def by_themselves(asked: Sequence[str], when: Sequence[float], ask: Ask) -> list[Told]:
    """Each request at its time (s), whatever became of those before."""
    began = asyncio.get_running_loop().time()
    tasks: list[asyncio.Task[Told]] = []

    async def one(prompt: str) -> Told:
        return await ask(prompt)

    async with asyncio.TaskGroup() as group:
        for prompt, start in zip(asked, when, strict=True):
            await asyncio.sleep(began + start - asyncio.get_running_loop().time())
            tasks.append(group.create_task(one(prompt)))
    return [task.result() for task in tasks]


async def read(prompt: str, stream: AsyncStream, clock: Clock) -> tuple[Told, str]:
    """A whole answer, each chunk with its time, and the id of its request."""
    sent = clock()
    times: list[float] = []
    tokens: list[int] = []
    ids: list[int] = []
    stats, error, rid = RequestStats(), "", ""
    try:
        async for chunk in stream:
            rid = chunk.rid
            if chunk.token_ids:
                times.append(clock())
                tokens.append(len(chunk.token_ids))
                ids += chunk.token_ids
            stats = chunk.stats or stats
    except RequestError as failure:
        error = str(failure)
    told = Told(
        prompt=prompt,
        sent=sent,
        times=tuple(times),
        tokens=tuple(tokens),
        digest=digest(ids),
        error=error,
        rounds=stats.rounds,
        drafted=stats.draft_tokens,
        accepted=stats.accepted_tokens,
        forward_ms=stats.forward_ms,
        wait_ms=stats.wait_ms,
    )
    return told, rid


async def long_prompt(ours: Ours, prompts: Sequence[Prompt]) -> list[int]:
    """Token ids of all prompts one after the other, over and over, until there are ``LONG_TOKENS``."""
    text = "\n\n".join(turn for prompt in prompts for turn in prompt.turns)
    ids = list((await ours.client.tokenize(text)).token_ids)
    return (ids * (LONG_TOKENS // len(ids) + 1))[:LONG_TOKENS]
