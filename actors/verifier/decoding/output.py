"""A request's output as text, and the one place that decides where it ends: stop token, stop string or length."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from actors.verifier.decoding.text import Decode, Detokenizer, StopStrings
from protocols.messages import FinishReason, Sampling


class Output:
    """``take`` decides, before the next forward begins. Text is made when it is asked for, while that forward runs,
    unless it decides: with stop strings it is made at once."""

    def __init__(
        self, prompt: Sequence[int], sampling: Sampling, eos: frozenset[int], decode: Decode, generated: Sequence[int]
    ) -> None:
        """``generated``: tokens of the output that the client has already."""
        self.finish: FinishReason | None = None
        self.stop_reason: str | int | None = None  # the stop string or stop token of the request's own that ended it
        self._own_stops = frozenset(sampling.stop_token_ids)
        self._stop_tokens = self._own_stops | (frozenset() if sampling.ignore_eos else eos)
        self._silent = self._own_stops | eos  # a model's end tokens are no text, ignored or not
        self._left = sampling.max_tokens - len(generated)
        self._detokenizer = Detokenizer(decode, prompt)
        self._stops = StopStrings(sampling.stop)
        self._unspelt: deque[int] = deque()
        self._pieces: deque[str] = deque()
        for token in generated:
            self._spell(token)

    def take(self, tokens: Sequence[int]) -> int:
        """How many of these tokens the output takes: all, or those up to the one that ends it."""
        for count, token in enumerate(tokens, 1):
            self._left -= 1
            if self._stops.stops:
                self._pieces.append(self._spell(token))
            else:
                self._unspelt.append(token)
            if token in self._stop_tokens:
                self.finish = FinishReason.STOP
                self.stop_reason = token if token in self._own_stops else None
            elif self._stops.found is not None:
                self.finish, self.stop_reason = FinishReason.STOP, self._stops.found
            elif self._left <= 0:
                self.finish = FinishReason.LENGTH
            if self.finish is not None:
                return count
        return len(tokens)

    def spell(self, count: int) -> tuple[list[str], bool]:
        """The text that each of the next ``count`` tokens completes, and whether they are the last of the output."""
        while len(self._pieces) < count:
            self._pieces.append(self._spell(self._unspelt.popleft()))
        pieces = [self._pieces.popleft() for _ in range(count)]
        last = self.finish is not None and not self._pieces and not self._unspelt
        if last and self._stops.found is None:  # what was held back is text after all
            pieces[-1] += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        return pieces, last

    def _spell(self, token: int) -> str:
        return "" if token in self._silent else self._stops.push(self._detokenizer.push(token))
