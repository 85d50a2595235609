"""Totals since the verifier's start: the sums over all requests' statistics."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from actors.estimate import Estimate
from protocols.messages import Chunk, DraftTotals, RoundStats

MAX_KNOWN = 256  # pairs of method and drafter, or of source and kind of streams; forgotten ones count for no drafter


@dataclass(slots=True)
class _Drafts:
    """The requests of one method while one drafter had their lease, as ``DraftTotals`` tells of them."""

    rounds: int = 0  # rounds with draft tokens
    tokens: int = 0
    accepted: int = 0
    accepted_per_position: Counter[int] = field(default_factory=Counter)
    rate: Estimate = field(default_factory=Estimate)  # tokens per second of one stream, by seconds
    plain_us: float = 0.0  # a round without drafts, lately

    def add(self, stats: RoundStats, own_us: float, plain_us: float) -> None:
        self.rounds += stats.window > 0
        self.tokens += stats.window
        self.accepted += stats.accepted
        self.accepted_per_position.update(range(stats.accepted))
        self.rate.add_ratio(stats.committed, own_us / 1e6)
        self.plain_us = plain_us

    def absorb(self, other: _Drafts) -> None:
        """Add what another drafter has done."""
        self.rounds += other.rounds
        self.tokens += other.tokens
        self.accepted += other.accepted
        self.accepted_per_position += other.accepted_per_position


@dataclass(slots=True)
class Totals:
    counters: Counter[str]  # the verifier's, which single numbers are added to
    # sums by method and drafter (names are the drafters' choice); the latest last
    drafts: OrderedDict[tuple[str, str], _Drafts] = field(default_factory=OrderedDict)

    def round(self, stats: RoundStats, own_us: float, plain_us: float) -> None:
        """Add one request's round. ``own_us``: its time without the prompts computed meanwhile; ``plain_us``: time of a
        round of plain decoding with as many requests."""
        key = stats.kind.method, stats.kind.drafter
        if key not in self.drafts:
            self.drafts[key] = _Drafts()
            if len(self.drafts) > MAX_KNOWN:
                self._forget()
        self.drafts.move_to_end(key)
        self.drafts[key].add(stats, own_us, plain_us)
        if stats.streams == stats.rows == 1 and not stats.wait_us and stats.plan is None:
            self.counters["plain_tokens"] += stats.committed
            self.counters["plain_us"] += round(own_us)

    def _forget(self) -> None:
        """Keep only the sums of the drafter without a round for the longest time."""
        method, drafter = next(key for key in self.drafts if key[1])
        gone = self.drafts.pop((method, drafter))
        self.drafts.setdefault((method, ""), _Drafts()).absorb(gone)

    def sent(self, chunk: Chunk) -> None:
        """Count a chunk that is sent to its client."""
        self.counters["prompt_tokens"] += chunk.prompt_tokens
        self.counters["prefix_cache_queries"] += chunk.prompt_tokens
        self.counters["prefix_cache_hits"] += chunk.cached_tokens
        self.counters["generation_tokens"] += len(chunk.token_ids)
        if chunk.finish_reason is not None:
            self.counters[f"finished_{chunk.finish_reason}"] += 1

    def of_drafter(self, name: str) -> list[_Drafts]:
        """A drafter's totals by method, the latest last."""
        return [drafts for (_, drafter), drafts in self.drafts.items() if drafter == name]

    def report(self) -> tuple[DraftTotals, ...]:
        return tuple(
            DraftTotals(
                method=method,
                drafter=drafter,
                drafts=drafts.rounds,
                draft_tokens=drafts.tokens,
                accepted_tokens=drafts.accepted,
                accepted_per_position=tuple(count for _, count in sorted(drafts.accepted_per_position.items())),
                speedup=drafts.rate.mean * drafts.plain_us / 1e6,
            )
            for (method, drafter), drafts in self.drafts.items()
        )
