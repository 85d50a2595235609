"""Lookahead decoding (Fu, Bailis, Stoica, Zhang, arXiv 2402.02057) as a state machine without a model.

Two dimensions of guesses ride along in the target's own forward. The *lookahead branch* is a window of W columns and
N - 1 levels. Level 0 is a chain below the root (the root itself is its column 0); the token in column j of level k
stands one position behind column j of level k - 1 and sees, besides level 0 up to column j, only the tokens above it
in its own column. So the visible tokens of each row form one path, and the whole window is a tree with explicit
parent links:

    root ── L0[1] ── L0[2] ── … ── L0[W-1]        depth of L0[j]: j
     │        │        │              │
    L1[0]   L1[1]    L1[2]         L1[W-1]         depth of Lk[j]: j + k
     │        │        │              │
    L2[0]   L2[1]     …               …

A forward over it gives the next token of every row. What follows the newest level completes one n-gram per column
(L0[j], …, L(N-2)[j], new) for the pool; then the levels move up by one and the new tokens are the newest level. This is
a Jacobi iteration that keeps its history. The *verification branch* is the pool's n-grams that begin with the root's
token, as a trie.

A row sees exactly its ancestors in the tree. So equal (parent, token) pairs of the two branches share one row, and the
walk of any other tree accepts rows of both, Jacobi rows included. Depth gives the position: ``length - 1 + depth``.

As in the authors' code the window moves on by one column of time per step, whatever number of tokens was accepted: the
guesses are approximate anyway, and a column must live N - 1 steps to give an n-gram. Two differences: an n-gram begins
with the token that its column really started from, where theirs puts the root's token before column 0; and a window
with the columns' first tokens taken at random from the prompt is seeded, so that runs repeat.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from actors.proposals import NOTHING, ROOT, Proposal, TrieBuilder


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The paper's N (at least 2), W and G (at least 1)."""

    ngram: int = 5  # N
    window: int = 7  # W
    guesses: int = 7  # G: most n-grams per first token, in the pool and in a step

    @property
    def max_rows(self) -> int:
        """Most rows of a step besides the root's: what an engine's window must hold."""
        return (self.window + self.guesses) * (self.ngram - 1) - 1

    def open(self, prompt: Sequence[int]) -> LookaheadSession:
        return LookaheadSession(self, prompt)


class LookaheadSession:
    """One request. Per step: ``propose``, one target forward over all its rows, ``ingest``."""

    def __init__(self, options: Lookahead, prompt: Sequence[int]) -> None:
        self.options = options
        self.pool: dict[int, dict[tuple[int, ...], None]] = {}  # continuations by first token, the latest last
        self.root = prompt[-1]
        # The first N - 2 steps fill one level each and lose one column each to the passing of time.
        rng = random.Random(0)
        columns = options.window + max(0, options.ngram - 2)
        self._levels: list[list[int]] = [[self.root, *rng.choices(prompt, k=columns - 1)]]
        self._newest: list[int] | None = None  # row of each column's newest token in the pending proposal

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens were committed that no proposal of this session was verified for (more prompt, replayed text)."""
        if tokens:
            self.root = tokens[-1]
            self._newest = None

    def propose(self, budget: int) -> Proposal:
        """The rows of the combined step, all of which are to be verified: scores say nothing. The window is all or
        nothing: below its size only guesses are proposed."""
        trie = TrieBuilder()
        window = sum(map(len, self._levels)) - 1
        self._newest = self._add_window(trie) if budget >= window else None
        for guess in reversed(self.pool.get(self.root, {})):
            parent = ROOT
            for token in guess:
                known = trie.find(parent, token)
                if known is None and len(trie) >= budget:
                    break
                parent = trie.add(parent, token, 1.0)
        return trie.build() if len(trie) else NOTHING

    def _add_window(self, trie: TrieBuilder) -> list[int]:
        row = ROOT
        above = [ROOT]
        for token in self._levels[0][1:]:
            row = trie.add(row, token, 1.0)
            above.append(row)
        for level in self._levels[1:]:
            above = [trie.add(parent, token, 1.0) for parent, token in zip(above, level, strict=True)]
        return above

    def collect(self, ngram: Sequence[int]) -> None:
        """Put an n-gram into the pool. Of more than ``guesses`` with its first token the least recent goes."""
        known, rest = self.pool.setdefault(ngram[0], {}), tuple(ngram[1:])
        known.pop(rest, None)
        known[rest] = None
        if len(known) > self.options.guesses:
            del known[next(iter(known))]

    def ingest(self, sampled: Sequence[int], committed: Sequence[int]) -> None:
        """``sampled[i]``: the target's token behind row i of the last proposal; ``committed``: the step's tokens.

        ``committed[0]`` is the target's token behind the root.
        """
        if not committed:
            return
        newest, self._newest = self._newest, None
        if newest is not None:
            if len(self._levels) == 1:  # the new token of column 0 follows the root itself, not a draft of it
                self._levels[0][0] = self.root
            new = [sampled[row] if row != ROOT else committed[0] for row in newest]
            for column in zip(*self._levels, new, strict=True):
                if len(column) == self.options.ngram:
                    self.collect(column)
            if len(self._levels) < self.options.ngram - 1:
                self._levels = [level[1:] for level in (*self._levels, new)]
            else:
                self._levels = [*self._levels[1:], new]
        self.root = committed[-1]
