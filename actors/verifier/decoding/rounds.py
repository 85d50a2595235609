"""One round of one request: what was verified, what came of it, and the sums over a request's rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from actors.tree.tree import Node
from actors.tree.window import Cost
from protocols.messages import FinishReason, RequestStats, TokenLogprobs


class Chosen(NamedTuple):
    """A window as the engine wants it, with the nodes it came from."""

    nodes: list[Node]
    tokens: list[int]
    parents: list[int]
    expected: float = 0.0  # draft tokens that the target should follow
    drafted: int = 0  # those that a drafter has named, and the verifier had not guessed itself


class Committed(NamedTuple):
    """What one round added to a request. ``accepted[i]``: token i was a draft token."""

    base_len: int
    tokens: list[int]
    accepted: list[bool]
    logprobs: list[TokenLogprobs]
    finish: FinishReason | None
    forced: Sequence[bool] = ()  # [i]: draft token i was the only one that the grammar allowed
    claim: tuple[float, bool] | None = None  # how likely a drafter held its first choice for the first; whether it was


class Others(NamedTuple):
    """The requests that decode beside one: how many, the rows that are theirs in the next forward, and the tokens per
    microsecond that they reach together. A row that lengthens the round lengthens it for all of them.

    ``row_us``: see :class:`Load`."""

    streams: int = 0
    rows: int = 0
    rate: float = 0.0
    row_us: float = 0.0

    def price(self, forward: Cost) -> Cost:
        """Microseconds of a round by its rows, as far as they tell one window from another; ``forward``: of a forward
        that nobody shares."""
        if self.streams:
            return lambda rows: rows * self.row_us
        return lambda rows: forward(rows) + rows * self.row_us


NO_OTHERS = Others()


@dataclass(frozen=True, slots=True)
class Load:
    """All requests that decode: how many, the tokens per microsecond that they reach together with those that are
    about to, and ``row_us``, what one more row of drafts takes: all of it where several share a forward, else what
    comes on top of the forward's time, which climbs in steps."""

    streams: int
    rate: float
    row_us: float = 0.0

    @property
    def least(self) -> float:
        """The chance of being right that a row of drafts must have to be worth its time; 0: no single number tells."""
        return self.rate * self.row_us if self.streams > 1 else 0.0

    def beside(self, rate: float, rows: int) -> Others:
        """Those beside a request of that rate; ``rows`` are theirs in the next forward."""
        return Others(self.streams - 1, rows, max(0.0, self.rate - rate), self.row_us)


IDLE = Load(0, 0.0)


@dataclass(slots=True)
class Counters:
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

    def count(self, where: list[int], value: int) -> None:
        where.extend([0] * (value + 1 - len(where)))
        where[value] += 1

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
