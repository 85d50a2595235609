"""From the verifier's telemetry to the rounds of one answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from duoactor.bench.results import BenchRound, Cost
from protocols import wire
from protocols.errors import ProtocolError
from protocols.messages import RequestStats, RoundStats, Telemetry
from protocols.transport import Feed

Span = tuple[float, float]  # begin and end, µs

LATE_S = 0.5  # how long telemetry may lag behind the last chunk


@dataclass(slots=True)
class Rounds:
    """Listens to the telemetry and keeps each request's rounds until they are taken."""

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

    async def take(self, rid: str, count: int) -> list[BenchRound]:
        """The rounds of an answer that is complete; fewer than ``count`` if messages were lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_S):
                while sum(one.rounds for one in self.by_rid.get(rid, ())) < count:
                    self._news.clear()
                    await self._news.wait()
        return [one for stats in self.by_rid.pop(rid, []) for one in rounds_of(stats)]


def rounds_of(stats: RoundStats) -> list[BenchRound]:
    """Each of the rounds that one message reports, with an equal part of their time."""
    count = stats.rounds
    forward_us, wall_us = stats.forward_us / count, (stats.wall_us - stats.wait_us) / count
    return [
        BenchRound(
            stats.started_us + place * forward_us,
            forward_us,
            max(0.0, stats.started_us - stats.wait_us) if stats.wait_us else 0.0,
            0.0 if place else stats.wait_us,
            wall_us if place else wall_us + stats.wait_us,
            stats.committed if count == 1 else 1,
            () if place else stats.drafting.forwards,
        )
        for place in range(count)
    ]


def cost_of(stats: RequestStats, rounds: Sequence[BenchRound]) -> Cost:
    """``rounds`` from telemetry: all, fewer, or none."""
    drafts = draft_spans(rounds)
    forwards = [(one.started_us, one.started_us + one.forward_us) for one in rounds]
    return Cost(
        rounds=stats.rounds,
        drafted=stats.draft_tokens,
        accepted=stats.accepted_tokens,
        gamma=stats.gamma,
        forward_ms=stats.forward_ms,
        wait_ms=stats.wait_ms,
        overhead_ms=stats.overhead_ms,
        decode_ms=stats.decode_ms,
        sequences=stats.sequences_histogram,
        draft_ms=sum(end - begin for begin, end in drafts) / 1000 if rounds else None,
        overlap_ms=shared(drafts, forwards) / 1000,
    )


def draft_spans(rounds: Iterable[BenchRound]) -> list[Span]:
    """When the drafter computed, in order of time."""
    return sorted((float(start), float(start + length)) for one in rounds for start, length in one.draft_forwards)


def shared(some: Sequence[Span], others: Sequence[Span]) -> float:
    """How long both lasted at the same time; each is in order, and none of its spans overlap."""
    total, at = 0.0, 0
    for begin, end in some:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        later = at
        while later < len(others) and others[later][0] < end:
            total += min(end, others[later][1]) - max(begin, others[later][0])
            later += 1
    return total
