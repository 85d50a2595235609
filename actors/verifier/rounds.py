"""One round of one request: its window, the load that it was priced by, its result, and the sums over all rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from actors.tree.tree import Node
from actors.tree.window import Cost
from protocols.messages import FinishReason, RequestStats, TokenLogprobs


class Chosen(NamedTuple):
    """A window as the engine takes it (see :class:`actors.models.Window`), with the tree's nodes in the same order."""

    nodes: list[Node]
    tokens: list[int]
    parents: list[int]
    expected: float = 0.0  # how many of its draft tokens the target should accept
    drafted: int = 0  # nodes that only a draft model has named, and none of the verifier's own proposers


class Committed(NamedTuple):
    """What one round added to a request. ``accepted[i]``: token i was a draft token."""

    base_len: int  # committed tokens before it
    tokens: list[int]
    accepted: list[bool]
    logprobs: list[TokenLogprobs]
    finish: FinishReason | None
    forced: Sequence[bool] = ()  # [i]: draft token i was the only one that the grammar allowed
    claim: tuple[float, bool] | None = None  # the drafter's probability for its likeliest first token; was it right?
    named: Sequence[bool] = ()  # [i]: a draft model had named draft token i


class Others(NamedTuple):
    """The requests that decode beside one. A row that lengthens the forward lengthens it for all of them."""

    streams: int = 0  # how many they are
    rows: int = 0  # theirs in the next forward
    rate: float = 0.0  # tokens per microsecond that they reach together
    row_us: float = 0.0  # see :class:`Load`
    start_us: float = 0.0  # that any drafts make the round longer by, however few they are

    def price(self, forward: Cost) -> Cost:
        """Microseconds of a round by its rows, up to a constant: to compare windows by. ``forward``: microseconds of a
        forward that only this request has rows in."""
        if self.streams:
            return lambda rows: rows * self.row_us
        return lambda rows: forward(rows) + rows * self.row_us + (self.start_us if rows > 1 else 0.0)


NO_OTHERS = Others()


@dataclass(frozen=True, slots=True)
class Load:
    """All requests that decode, as far as it matters to what a row of drafts costs."""

    streams: int  # how many they are
    rate: float  # tokens per microsecond that they reach together, those in prefill included
    # Microseconds of one more row of drafts. Where several streams share a forward it is all that the row costs; for a
    # single stream, whose forward time climbs in steps, it is what comes on top of the forward.
    row_us: float = 0.0

    @property
    def least(self) -> float:
        """The least chance of acceptance with which a row of drafts is worth its time; 0: it depends on the window."""
        return self.rate * self.row_us if self.streams > 1 else 0.0

    def beside(self, rate: float, rows: int) -> Others:
        """The others beside a request of that rate; ``rows`` are theirs in the next forward."""
        return Others(self.streams - 1, rows, max(0.0, self.rate - rate), self.row_us)


IDLE = Load(0, 0.0)


@dataclass(slots=True)
class Counters:
    """Sums over a request's rounds, as ``RequestStats`` tells them."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    histogram: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    gamma_sum: float = 0.0
    forward_us: float = 0.0
    wait_us: float = 0.0
    resyncs: int = 0

    def count(self, histogram: list[int], value: int, times: int = 1) -> None:
        histogram.extend([0] * (value + 1 - len(histogram)))
        histogram[value] += times

    def stats(self, method: str, prompt_tokens: int, completion_tokens: int) -> RequestStats:
        return RequestStats(
            method=method,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            rounds=self.rounds,
            draft_tokens=self.drafted,
            accepted_tokens=self.accepted,
            acceptance_histogram=tuple(self.histogram),
            sequences_histogram=tuple(self.sequences),
            gamma=self.gamma_sum / self.rounds if self.rounds else 0.0,
            forward_ms=self.forward_us / 1000,
            wait_ms=self.wait_us / 1000,
            resyncs=self.resyncs,
            forced_tokens=self.forced,
        )
