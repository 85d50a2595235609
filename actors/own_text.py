"""Continuations from the request's own text: what followed the last tokens where they occurred before.

*Prompt lookup* (PLD; Saxena 2023) looks the last 3 tokens up, then the last 2, then the last. Up to 10 tokens after the
match are the draft. By default the most recent match counts and a repeating text is extrapolated; ``earliest=True`` is
the rule of the original (first match, draft ends with the text).

The *longest match* (what SAM decoding, arXiv 2411.10666, finds with a suffix automaton) does the same with the longest
suffix that occurred before. A text is kept as a string with a character for each token, which the interpreter searches
in microseconds: an automaton in Python takes 40 times as long to read a prompt (docs/experiments/rounds.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.proposals import NOTHING, ROOT, Proposal, match_confidences


@dataclass(frozen=True, slots=True)
class PromptLookup:
    longest: int = 3  # tokens of a match that are compared
    tokens: int = 10  # most tokens in a draft
    earliest: bool = False

    def open(self, prompt: Sequence[int]) -> OwnText:
        session = OwnText(self)
        session.extend(prompt)
        return session


@dataclass(frozen=True, slots=True)
class LongestMatch(PromptLookup):
    longest: int = 64  # bounds a search: this many comparisons for each token of the text
    tokens: int = 16


class OwnText:
    """The text of one request."""

    def __init__(self, options: PromptLookup) -> None:
        self.options = options
        self._text = ""  # a character for each token

    def extend(self, tokens: Sequence[int]) -> None:
        self._text += "".join(map(chr, tokens))

    def match(self) -> tuple[int, int]:
        """The length of the longest suffix that occurred before, and the place after that occurrence; 0: none did."""
        text, longest, earliest = self._text, self.options.longest, self.options.earliest
        end = len(text)
        length, behind, left = 0, end, min(longest, end - 1)
        while length < left:
            suffix = text[end - length - 1 :]
            # no longer match ends behind the latest of a shorter one
            at = text.find(suffix, 0, end - 1) if earliest else text.rfind(suffix, 0, min(behind, end - 1))
            if at < 0:
                break
            length += 1
            behind = at + length
            while length < left and at and text[at - 1] == text[end - length - 1]:
                at, length = at - 1, length + 1
        return length, behind

    def propose(self, budget: int) -> Proposal:
        options = self.options
        length, behind = self.match()
        count = min(options.tokens, budget)
        if not length or count <= 0:
            return NOTHING
        copied = self._text[behind : behind + count]
        if not options.earliest:  # a match that overlaps the end of the text means that the text repeats
            copied = (copied * (count // len(copied) + 1))[:count]
        parents = tuple(range(ROOT, len(copied) - 1))
        return Proposal(tuple(map(ord, copied)), parents, match_confidences(length, len(copied)))
