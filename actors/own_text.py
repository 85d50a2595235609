"""Continuations from the request's own text: prompt lookup decoding, and a suffix automaton.

*Prompt lookup* (PLD; Saxena 2023) looks the last 3 tokens up, then the last 2, then the last. Up to 10 tokens behind
the match are the draft. By default the most recent match counts and a repeating text is extrapolated; ``earliest=True``
is the rule of the original (first match, draft ends with the text).

The *suffix automaton* (as SAM decoding, arXiv 2411.10666) finds the longest suffix that occurred before. It has one
state per class of substrings that end at the same places; ``link`` of the state of the whole text is that suffix.
So the match needs no search: extending is amortised O(1) per token, and proposing costs the length of the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.proposals import (
    NOTHING,
    ROOT,
    Proposal,
    copy_ahead,
    match_confidences,
)


@dataclass(frozen=True, slots=True)
class PromptLookup:
    longest: int = 3  # n-gram lengths tried, longest first
    shortest: int = 1
    tokens: int = 10  # most tokens in a draft
    earliest: bool = False

    def open(self, prompt: Sequence[int]) -> PromptLookupSession:
        session = PromptLookupSession(self)
        session.extend(prompt)
        return session


class PromptLookupSession:
    def __init__(self, options: PromptLookup) -> None:
        self.options = options
        self.text: list[int] = []
        # n-gram -> index of the token behind it; the lengths need no separate tables, tuples of two lengths differ
        self._behind: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        text, behind, options = self.text, self._behind, self.options
        for token in tokens:
            # An n-gram enters once something follows it, so the suffix itself is never its own match.
            at = len(text)
            for n in range(options.shortest, min(options.longest, at) + 1):
                gram = tuple(text[at - n :])
                if options.earliest:
                    behind.setdefault(gram, at)
                else:
                    behind[gram] = at
            text.append(token)

    def propose(self, budget: int) -> Proposal:
        options, text = self.options, self.text
        count = min(budget, options.tokens)
        if count <= 0:
            return NOTHING
        for n in range(min(options.longest, len(text)), options.shortest - 1, -1):
            at = self._behind.get(tuple(text[len(text) - n :]))
            if at is None:
                continue
            copied = text[at : at + count] if options.earliest else copy_ahead(text, at, count)
            return Proposal(
                tuple(copied),
                tuple(range(ROOT, len(copied) - 1)),
                match_confidences(n, len(copied)),
            )
        return NOTHING


_REMEMBER = 4  # the suffix and its shorter matches: this many are kept up to date


@dataclass(frozen=True, slots=True)
class SuffixAutomaton:
    tokens: int = 16  # most tokens of a draft
    shortest: int = 1  # matches below this give no draft

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

    def extend(self, tokens: Sequence[int]) -> None:
        text, edges, links, lengths, behind = self.text, self._next, self._link, self._length, self._behind
        last = self._last
        for token in tokens:
            # The matches so far are now followed by this token: the most recent place to copy from.
            state, left, place = links[last], _REMEMBER, len(text)
            while state > 0 and left:
                behind[state] = place
                state, left = links[state], left - 1
            text.append(token)
            state, last = last, len(lengths)
            edges.append({})
            links.append(0)
            lengths.append(lengths[state] + 1)
            behind.append(place + 1)
            while state >= 0 and token not in edges[state]:
                edges[state][token] = last
                state = links[state]
            if state >= 0:
                links[last] = self._ending(state, token)
        self._last = last

    def _ending(self, state: int, token: int) -> int:
        """The state that the strings of ``state`` and ``token`` behind them are the longest of."""
        edges, links, lengths = self._next, self._link, self._length
        follower = edges[state][token]
        if lengths[follower] == lengths[state] + 1:
            return follower
        # The follower's longer strings end elsewhere from now on: its shorter ones become a state of their own.
        short = len(lengths)
        edges.append(dict(edges[follower]))
        links.append(links[follower])
        lengths.append(lengths[state] + 1)
        self._behind.append(self._behind[follower])
        while state >= 0 and edges[state].get(token) == follower:
            edges[state][token] = short
            state = links[state]
        links[follower] = short
        return short

    def propose(self, budget: int) -> Proposal:
        state = self._link[self._last] if self._last else 0
        length, count = self._length[state], min(self.options.tokens, budget)
        if state <= 0 or length < self.options.shortest or count <= 0:
            return NOTHING
        path = copy_ahead(self.text, self._behind[state], count)
        return Proposal(tuple(path), tuple(range(ROOT, len(path) - 1)), match_confidences(length, len(path)))
