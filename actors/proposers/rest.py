"""Retrieval from a datastore (REST; He et al., arXiv 2311.08252): a trie of what followed this suffix elsewhere.

The longest suffix of the text, 16 down to 2 tokens, that occurs in the datastore is looked up; the continuations of
its occurrences form a trie with counts, and the most frequent connected nodes are the proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from actors.proposers.datastore import ORDERED, Datastore
from actors.proposers.interface import NOTHING, ROOT, Proposal, match_confidence


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Open the datastore with the model's tokenizer digest, so that its ids mean the same."""

    datastore: Datastore
    longest: int = 16  # suffix lengths tried, longest first
    shortest: int = 2
    tokens: int = 10  # most tokens along one continuation
    nodes: int = 64  # most nodes of a proposal
    matches: int = 2048  # occurrences looked at; of more, an even sample

    def open(self, prompt: Sequence[int]) -> RetrievalSession:
        session = RetrievalSession(self)
        session.extend(prompt)
        return session


class RetrievalSession:
    def __init__(self, options: Retrieval) -> None:
        self.options = options
        self._suffix: list[int] = []
        # A match can grow by one with each new token at most, which bounds the next search.
        self._bound = options.longest

    def extend(self, tokens: Sequence[int]) -> None:
        longest = self.options.longest
        self._suffix = [*self._suffix, *tokens[-longest:]][-longest:]
        self._bound = min(longest, self._bound + len(tokens))

    def propose(self, budget: int) -> Proposal:
        options = self.options
        budget = min(budget, options.nodes)
        length, low, high = self._match()
        self._bound = max(length, options.shortest - 1)  # shorter matches were not looked for
        if length < options.shortest or budget <= 0:
            return NOTHING
        return self._trie(length, low, high, budget)

    def _match(self) -> tuple[int, int, int]:
        """(length, low, high) of the longest suffix in the datastore; length 0 if even the shortest is not there."""
        find, suffix = self.options.datastore.find, self._suffix
        shortest = self.options.shortest
        best = (0, 0, 0)
        top = min(self._bound, len(suffix))
        bottom, probe = shortest, top  # the last match usually goes on: try the longest first, then halve
        while bottom <= top:
            low, high = find(suffix[len(suffix) - probe :])
            if low < high:
                best = (probe, low, high)
                bottom = probe + 1
            else:
                top = probe - 1
            probe = (bottom + top + 1) // 2
        return best

    def _trie(self, length: int, low: int, high: int, budget: int) -> Proposal:
        options, store = self.options, self.options.datastore
        if high - low > options.matches:
            picks: npt.NDArray[Any] = np.linspace(low, high - 1, options.matches).astype(np.int64)
            at = store.suffixes[picks].astype(np.int64)
        else:
            at = store.suffixes[low:high].astype(np.int64)
        places = at[:, None] + np.arange(length, length + options.tokens)
        rows = store.tokens[np.minimum(places, len(store.tokens) - 1)].astype(np.int64)
        ended = np.logical_or.accumulate(rows == store.separator, axis=1)
        rows[ended] = store.separator
        if length + options.tokens > ORDERED:  # the rows come sorted only as far as the datastore's order goes
            rows = rows[np.lexsort(rows.T[::-1])]
        return _most_frequent(rows, store.separator, budget, length)


def _most_frequent(rows: npt.NDArray[Any], separator: int, budget: int, length: int) -> Proposal:
    """The ``budget`` most frequent nodes of the trie of sorted ``rows`` [matches, tokens].

    A node's count is never above its parent's, so that the most frequent nodes are connected if ties go to the
    shallower.
    """
    total, depths = rows.shape
    # A row begins a node at depth d where it differs from the row above in one of its first d + 1 tokens.
    begins = np.ones((total, depths), dtype=bool)
    begins[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
    begins_flat = np.flatnonzero(begins.T)  # by depth, then by row
    depth, row = np.divmod(begins_flat, total)
    ends = np.append(begins_flat[1:], total * depths)
    counts = ends - begins_flat  # every depth begins at row 0, so runs do not cross depths
    token = rows[row, depth]
    real = token != separator
    order = np.flatnonzero(real)
    if len(order) > budget:
        order = order[np.argsort(-counts[order], kind="stable")[:budget]]  # stable: shallower first among equals
        order.sort()
    node_ids = np.cumsum(begins.T).reshape(depths, total) - 1  # [depth, row] -> index of its node
    where: dict[int, int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    for node in order.tolist():
        d, r, count = int(depth[node]), int(row[node]), int(counts[node])
        above = int(node_ids[d - 1, r]) if d else ROOT
        where[node] = len(tokens)
        tokens.append(int(token[node]))
        parents.append(where[above] if d else ROOT)
        parent_count = int(counts[above]) if d else total
        scores.append(match_confidence(length + d) * count / parent_count)
    return Proposal(tuple(tokens), tuple(parents), tuple(scores))
