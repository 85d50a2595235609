"""A round as one stream knows it: its window, the tokens that it added, and the sums over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from actors.models import Ranked
from actors.tree.tree import Node
from protocols.messages import FinishReason, TokenLogprobs


class Group(NamedTuple):
    """A kind of streams, for which a source of drafts is judged as one."""

    method: str
    sampled: bool
    load: int  # binary digits of the number of streams that share their rounds


class Chosen(msgspec.Struct, frozen=True, eq=False):
    """A window as the engine takes it (see :class:`actors.models.Window`), with the tree's nodes in the same order."""

    nodes: list[Node]
    tokens: list[int]
    parents: list[int]
    expected: float = 0.0  # how many of its draft tokens the target should accept


NO_WINDOW = Chosen([], [], [])


class Committed(msgspec.Struct, frozen=True, eq=False):
    """The tokens that one round added to a stream. ``accepted[i]``: token i was a draft token."""

    base_len: int  # committed tokens before it
    tokens: list[int]
    accepted: list[bool]
    logprobs: list[TokenLogprobs]
    finish: FinishReason | None
    chosen: Chosen
    root: Node  # node that the window hung on
    held: Sequence[Node | None]  # [i]: the tree's node of token i
    sampled: Sequence[int]  # the target's token after the root and after each node of the window
    ranked: Ranked | None = None  # see :attr:`actors.models.Outcome.ranked`


@dataclass(slots=True)
class RoundSums:
    """Sums over a stream's rounds, as ``RequestStats`` tells them."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    forced: int = 0
    foreseen: int = 0
    histogram: Counter[int] = field(default_factory=Counter)  # rounds by their accepted tokens
    sequences: Counter[int] = field(default_factory=Counter)  # drafting phases by their number of sequences
    gamma_sum: float = 0.0
    forward_us: float = 0.0
    wait_us: float = 0.0
    resyncs: int = 0

    def round(self, rounds: int, drafted: int, accepted: int, forced: int, gamma: float) -> None:
        self.rounds += rounds
        self.drafted += drafted
        self.accepted += accepted
        self.forced += forced
        self.gamma_sum += rounds * gamma
        self.histogram[accepted] += rounds
