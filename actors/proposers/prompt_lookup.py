"""Prompt lookup decoding (PLD; Saxena 2023): copy what followed the last few tokens where they occurred before.

The suffix of prompt + output is looked up as an n-gram, from 3 tokens down to 1, and up to 10 tokens behind the match
are the draft. By default the most recent match counts and a repeating text is extrapolated; ``earliest=True`` is the
rule of the original (first match, draft ends with the text).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.proposers.interface import NOTHING, ROOT, Proposal, copy_ahead, match_confidences


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
