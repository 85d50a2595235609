"""What the verifier's telemetry tells of one answer's rounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from duoactor.bench.results import AcceptedBy, Cost, Round
from duoactor.monitor.spans import Span, shared
from protocols import wire
from protocols.errors import ProtocolError
from protocols.messages import RequestStats, RoundStats, Telemetry
from protocols.transport import Feed

LATE_S = 0.5  # how long telemetry may lag behind the last chunk


@dataclass(slots=True)
class Rounds:
    """Listens to the verifier's telemetry and keeps the rounds of requests until they are taken."""

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
                self.by_rid.setdefault(message.rid, []).extend(singly(message))
                self._news.set()

    async def take(self, rid: str, count: int) -> list[RoundStats]:
        """The rounds of an answer that is complete; fewer than ``count`` when the socket lost some."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_S):
                while len(self.by_rid.get(rid, ())) < count:
                    self._news.clear()
                    await self._news.wait()
        return self.by_rid.pop(rid, [])


def singly(stats: RoundStats) -> list[RoundStats]:
    """Each of the rounds that the statistics tell of, with an equal part of their time."""
    if stats.rounds == 1:
        return [stats]
    forward_us, wait_us = stats.forward_us / stats.rounds, stats.wait_us
    wall_us = (stats.wall_us - wait_us) / stats.rounds
    return [
        msgspec.structs.replace(
            stats,
            round=stats.round - stats.rounds + 1 + place,
            committed=1,
            started_us=stats.started_us + place * forward_us,
            forward_us=forward_us,
            wait_us=0.0 if place else wait_us,
            wall_us=wall_us if place else wall_us + wait_us,
        )
        for place in range(stats.rounds)
    ]


def round_of(one: RoundStats) -> Round:
    return Round(
        one.started_us,
        one.forward_us,
        one.waited_from_us,
        one.wait_us,
        one.wall_us,
        one.window,
        one.accepted,
        one.committed,
        one.sequences,
        one.gamma or 0,
        one.draft_forwards,
    )


def cost_of(stats: RequestStats, told: Sequence[RoundStats]) -> Cost:
    """``told`` may be fewer rounds than ``stats`` counts, or none."""
    rounds = [round_of(one) for one in told]
    needed = Counter((one.phase_sequences, one.phase_rank) for one in told if one.phase_sequences > 0)
    drafts = draft_spans(rounds)
    forwards = [(one.started_us, one.ended_us) for one in rounds]
    worked = [shared(drafts, [span]) > 0 for span in round_spans(rounds)]
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
        needed=tuple(sorted((k, rank, count) for (k, rank), count in needed.items())),
        heard=len(rounds),
        verifying_drafts=sum(one.window > 0 for one in rounds),
        watched=max(0, len(rounds) - 1),
        at_work=sum(worked[:-1]),
        drafting=sum(busy or one.window > 0 for busy, one in zip(worked[:-1], rounds, strict=False)),
        draft_ms=sum(end - begin for begin, end in drafts) / 1000,
        overlap_ms=shared(drafts, forwards) / 1000,
        sources=sources_of(told) if told else None,
    )


def sources_of(told: Sequence[RoundStats]) -> AcceptedBy:
    return AcceptedBy(
        draft=sum(one.from_draft for one in told),
        both=sum(one.from_both for one in told),
        text=sum(one.from_text for one in told),
        memory=sum(one.from_memory for one in told),
        datastore=sum(one.from_datastore for one in told),
    )


def draft_spans(rounds: Iterable[Round]) -> list[Span]:
    """When the drafter computed, in order of time."""
    return sorted((float(start), float(start + length)) for one in rounds for start, length in one.draft_forwards)


def round_spans(rounds: Sequence[Round]) -> list[Span]:
    """From the end of one round's forward to the end of the next one's."""
    begins = [one.ended_us for one in rounds]
    first = [rounds[0].ended_us - rounds[0].wall_us] if rounds else []
    return list(zip([*first, *begins], begins, strict=False))
