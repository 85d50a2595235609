"""A text that the request itself predicts, such as the file that is to be edited: OpenAI's predicted outputs.

The output is followed through the prediction token by token. Where it differs, it is found again behind its latest
tokens: at the next place that they occur, or, if they are several, at any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.proposals import NOTHING, ROOT, Proposal, match_confidences

LONGEST = 4  # latest tokens by which a place is found
PLACES = 64  # that are compared


@dataclass(frozen=True, slots=True)
class Predicted:
    """The proposer of one request's prediction."""

    tokens: Sequence[int]
    prompt_len: int = 0

    def open(self, prompt: Sequence[int]) -> PredictedSession:
        session = PredictedSession(self.tokens, self.prompt_len)
        session.extend(prompt)
        return session


class PredictedSession:
    def __init__(self, tokens: Sequence[int], prompt_len: int) -> None:
        self.tokens, self._before_output = tokens, prompt_len
        self.agreed = 0  # tokens of the output that the prediction had in their place
        self._at, self._match = 0, LONGEST  # the next token's index, and how many agree before it
        self._latest: list[int] = []  # tokens of the output
        self._places: dict[int, list[int]] = {}  # behind each token
        for index, token in enumerate(tokens):
            self._places.setdefault(token, []).append(index + 1)

    def extend(self, tokens: Sequence[int]) -> None:
        skipped = min(len(tokens), self._before_output)
        self._before_output -= skipped
        for token in tokens[skipped:]:
            self._latest = [*self._latest[1 - LONGEST :], token]
            if self._match and self._at < len(self.tokens) and self.tokens[self._at] == token:
                self._at, self._match, self.agreed = self._at + 1, self._match + 1, self.agreed + 1
            else:
                self._find()

    def _find(self) -> None:
        """The place with the longest match; of several the next one."""
        known = self._places.get(self._latest[-1], ())
        places = [place for place in known if place >= self._at][:PLACES]
        places += [place for place in known if place < self._at][-PLACES:]
        matches = [self._length(place) for place in places]
        best = max(matches, default=0)
        place = places[matches.index(best)] if best else 0
        self._match = best if best > 1 or place >= self._at else 0
        self._at = place if self._match else self._at

    def _length(self, place: int) -> int:
        """How many of the output's latest tokens stand before the place."""
        length = 0
        for token, other in zip(reversed(self._latest), reversed(self.tokens[:place][-LONGEST:]), strict=False):
            if token != other:
                break
            length += 1
        return length

    def propose(self, budget: int) -> Proposal:
        path = tuple(self.tokens[self._at : self._at + budget]) if self._match else ()
        if not path:
            return NOTHING
        return Proposal(path, tuple(range(ROOT, len(path) - 1)), match_confidences(self._match, len(path)))
