"""A request's output as text, and the one place that decides where it ends: stop token, stop string or length."""

from __future__ import annotations

from collections.abc import Sequence

from actors.verifier.text import Decode, Detokenizer, StopStrings
from protocols.messages import FinishReason, Sampling


class Output:
    """``take`` decides where the output ends, before the next forward begins. ``spell`` makes its text later, while
    that forward runs; only with stop strings the text is made first, because it decides."""

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        eos: frozenset[int],
        decode: Decode,
        generated: Sequence[int],
        dictated: range = range(0),
    ) -> None:
        """``eos``: the model's end-of-sequence tokens. ``generated``: output tokens that the client has already;
        ``dictated``: places of tokens that do not end the output, whatever they are."""
        self.finish: FinishReason | None = None  # None: it goes on
        self.stop_reason: str | int | None = None  # the request's own stop string or stop token that ended it
        self._own_stops = frozenset(sampling.stop_token_ids)
        self._stop_tokens = sampling.ends(eos)
        self._silent = self._own_stops | eos  # end tokens have no text, whether they end the output or not
        self._left = sampling.max_tokens - len(generated)  # tokens that may still follow
        self._most, self._least, self._dictated = sampling.max_tokens, sampling.min_tokens, dictated
        self._detokenizer = Detokenizer(decode, prompt)
        self._stops = StopStrings(sampling.stop)
        self._pending = list[int | str]()  # tokens taken that have no text so far, or their text
        for token in generated:
            self._spell(token, ends=False)

    def take(self, tokens: Sequence[int]) -> int:
        """Append tokens up to the end of the output. Returns how many were taken."""
        before, spells, stop_tokens = self._left, bool(self._stops.stops), self._stop_tokens
        for token in tokens:
            place = self._most - self._left
            self._left -= 1
            ends = place >= self._least and place not in self._dictated
            self._pending.append(self._spell(token, ends) if spells else token)
            if ends and token in stop_tokens:
                self.finish = FinishReason.STOP
                self.stop_reason = token if token in self._own_stops else None
            elif self._stops.found is not None:
                self.finish, self.stop_reason = FinishReason.STOP, self._stops.found
            elif self._left <= 0:
                self.finish = FinishReason.LENGTH
            if self.finish is not None:
                if spells and self._stops.found is None:
                    self._spell_rest(ends)
                break
        return before - self._left

    def ends_at(self, token: int) -> bool:
        """Whether that token would end the output."""
        return token in self._stop_tokens

    def spell(self, count: int) -> tuple[list[str], bool]:
        """(the text that each of the next ``count`` tokens completes, whether they are the last of the output)."""
        taken, self._pending = self._pending[:count], self._pending[count:]
        pieces = [one if isinstance(one, str) else self._spell(one) for one in taken]
        last = self.finish is not None and not self._pending
        if last and self._stops.found is None:  # text that might have begun a stop string did not
            pieces[-1] += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        return pieces, last

    def _spell_rest(self, ends: bool) -> None:
        """Give out what the last token leaves of a character, in which a stop string may still be."""
        self._pending[-1] = f"{self._pending[-1]}{self._stops.push(self._detokenizer.flush(), ends)}"
        if self._stops.found is not None:
            self.finish, self.stop_reason = FinishReason.STOP, self._stops.found

    def _spell(self, token: int, ends: bool = True) -> str:
        """The text that ``token`` releases; ``ends``: a stop string that it completes ends the output."""
        if token in self._silent:
            return ""
        piece = self._detokenizer.push(token)
        return self._stops.push(piece, ends) if self._stops.stops else piece
