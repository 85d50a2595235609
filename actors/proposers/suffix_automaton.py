"""Longest-suffix match over the request's own text by an online suffix automaton (as SAM decoding, arXiv 2411.10666).

The automaton of a text has one state per class of substrings that end at the same places. ``link`` of the state of
the whole text is the longest suffix that occurred before, so the match needs no search: extending is amortised O(1)
per token and proposing costs the length of the draft. Unlike PLD's fixed n-grams the match is as long as it can be,
and its length says how far to trust it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.proposers.interface import (
    NOTHING,
    ROOT,
    Proposal,
    TrieBuilder,
    copy_ahead,
    match_confidence,
    match_confidences,
)

_REMEMBER = 4  # of the suffix and its shorter matches, this many are kept up to date and tried


@dataclass(frozen=True, slots=True)
class SuffixAutomaton:
    tokens: int = 16  # most tokens along one branch
    shortest: int = 1  # matches below this give no draft
    branches: int = 1  # further branches follow the next shorter matches where those go on differently

    def open(self, prompt: Sequence[int]) -> SuffixAutomatonSession:
        session = SuffixAutomatonSession(self)
        session.extend(prompt)
        return session


class SuffixAutomatonSession:
    """States are indices into parallel lists; state 0 is the empty string."""

    def __init__(self, options: SuffixAutomaton) -> None:
        self.options = options
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._behind: list[int] = [0]  # index of the token behind a recent occurrence of the state's strings
        self._last = 0

    @property
    def match_length(self) -> int:
        """Length of the longest suffix that also occurs earlier in the text."""
        return self._length[self._link[self._last]] if self._last else 0

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            # The matches so far are now followed by this token: the most recent place to copy from.
            state = self._link[self._last] if self._last else 0
            for _ in range(_REMEMBER):
                if state <= 0:
                    break
                self._behind[state] = len(self.text)
                state = self._link[state]
            self._append(token)
            self.text.append(token)

    def _append(self, token: int) -> None:
        edges, links, lengths = self._next, self._link, self._length
        new = self._state(lengths[self._last] + 1, {}, 0, len(self.text) + 1)
        state = self._last
        while state >= 0 and token not in edges[state]:
            edges[state][token] = new
            state = links[state]
        if state >= 0:
            follower = edges[state][token]
            if lengths[follower] != lengths[state] + 1:
                # The follower's longer strings end elsewhere from now on: its shorter ones become a state of their own.
                short = self._state(lengths[state] + 1, dict(edges[follower]), links[follower], self._behind[follower])
                while state >= 0 and edges[state].get(token) == follower:
                    edges[state][token] = short
                    state = links[state]
                links[follower] = short
                follower = short
            links[new] = follower
        self._last = new

    def _state(self, length: int, edges: dict[int, int], link: int, behind: int) -> int:
        self._next.append(edges)
        self._link.append(link)
        self._length.append(length)
        self._behind.append(behind)
        return len(self._length) - 1

    def propose(self, budget: int) -> Proposal:
        options = self.options
        state = self._link[self._last] if self._last else 0
        if options.branches == 1:
            return self._chain(state, min(options.tokens, budget))
        trie = TrieBuilder()
        branches = 0
        for _ in range(_REMEMBER):
            length = self._length[state]
            if state <= 0 or length < options.shortest or branches == options.branches or len(trie) >= budget:
                break
            path = copy_ahead(self.text, self._behind[state], min(options.tokens, budget - len(trie)))
            if trie.find(ROOT, path[0]) is None:
                trust = 0.5 if branches else 1.0  # a longer match went another way
                branches += 1
                parent = ROOT
                for depth, token in enumerate(path):
                    parent = trie.add(parent, token, trust * match_confidence(length + depth))
                    trust = 1.0
            state = self._link[state]
        return trie.build() if len(trie) else NOTHING

    def _chain(self, state: int, count: int) -> Proposal:
        length = self._length[state]
        if state <= 0 or length < self.options.shortest or count <= 0:
            return NOTHING
        path = copy_ahead(self.text, self._behind[state], count)
        return Proposal(tuple(path), tuple(range(ROOT, len(path) - 1)), match_confidences(length, len(path)))
