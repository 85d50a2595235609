"""``trace`` of a streamed chunk: where each token came from, and the tree of its round, as named fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from protocols.messages import Chunk, Origin, RoundStats, RoundTrace

REMEMBERED = "remembered"  # origin of a token that the memory of earlier requests named, whoever else did


@dataclass(frozen=True, slots=True)
class Piece:
    """A token as text, in which U+FFFD stands for parts of characters, and as bytes."""

    text: str
    octets: bytes

    @property
    def name(self) -> str:
        """Its name in OpenAI's completions: its text, or its bytes where they are no text."""
        try:
            return self.octets.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{octet:02x}" for octet in self.octets)


Pieces = Mapping[int, Piece]  # pieces of reported tokens, by token id


class TracedTree(msgspec.Struct, frozen=True):
    """The token tree of a round before it is pruned; the first ``round.window`` nodes are the verified ones."""

    token_ids: Sequence[int]
    text: list[str]
    parents: Sequence[int]  # -1: the last committed token
    chance: list[float]  # estimated chances, given the parent
    origins: Sequence[str]
    arrived_us: Sequence[int]
    path: Sequence[int]


class ChunkTrace(msgspec.Struct, frozen=True):
    """The origin of a chunk's tokens. ``round``: see ``_named``; null: the prompt's own forward."""

    token_ids: Sequence[int]
    pieces: Sequence[str]  # the text that each token completes
    origins: list[str]  # each token's Origin, or REMEMBERED
    chance: list[float | None]  # each token's chance, as its drafter believed; null: not a draft
    round: dict[str, Any] | None = None
    tree: TracedTree | None = None


def traced(chunk: Chunk, pieces: Pieces) -> ChunkTrace:
    count, found = len(chunk.token_ids), chunk.trace
    if found is None:
        known = [Origin.DRAFT if drafted else Origin.TARGET for drafted in chunk.accepted]
        return ChunkTrace(chunk.token_ids, chunk.pieces, [*known], [None] * count)
    tree = _tree(found, pieces)
    origins = [*(tree.origins[at] for at in found.path), Origin.TARGET][:count]
    chance = [*(tree.chance[at] for at in found.path), None][:count]
    return ChunkTrace(chunk.token_ids, chunk.pieces, origins, chance, _named(found.stats), tree)


def _named(stats: RoundStats) -> dict[str, Any]:
    """A round as named fields, those of its parts among them."""
    named = msgspec.structs.asdict(stats)
    kind, plan, drafting = named.pop("kind"), named.pop("plan"), named.pop("drafting")
    waited_from_us = max(0.0, stats.started_us - stats.wait_us) if stats.wait_us else 0.0
    # without a drafter at work nothing is waited for but the draft model or head beside the target
    own = stats.wait_us > 0 and (not kind.drafter or plan is None)
    return named | {
        "method": kind.method,
        "drafter": kind.drafter,
        "resting": bool(kind.drafter) and plan is None,
        "gamma": plan.gamma if plan is not None else None,
        "sequences": drafting.sequences,
        "draft_forwards": [(waited_from_us, stats.wait_us)] if own else drafting.forwards,
        "own_drafts": own,
        "waited_from_us": waited_from_us,
    }


def _tree(found: RoundTrace, pieces: Pieces) -> TracedTree:
    remembered = frozenset(found.remembered)
    return TracedTree(
        found.tokens,
        [pieces[token].text for token in found.tokens],
        found.parents,
        [round(math.exp(logprob), 4) for logprob in found.logprobs],
        [REMEMBERED if at in remembered else origin for at, origin in enumerate(found.origins)],
        found.arrived_us,
        found.path,
    )
