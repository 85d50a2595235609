"""Text from token ids as it streams: whole characters only, and nothing after a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[tuple[int, ...]], str]
REPLACEMENT = "�"  # what tokenizers decode an incomplete character to


class Detokenizer:
    """Incremental decoding. A token's piece is the text that it completes; an incomplete character is held back.

    Tokenizers may treat the start of a sequence specially, so each piece is the difference of two decodings that share
    a few tokens of context.

    ``tokenizers.decoders.DecodeStream`` cannot be used (``tests/engines/test_detokenizing.py``). After a prompt that
    ends inside a character it repeats the prompt's text. It raises on bytes that are not UTF-8, which a model may emit.
    It never gives out what it holds back at the end. Tokenizers written in Python do not have it.
    """

    CONTEXT = 6  # tokens of the prompt that are decoded as context; a character has four bytes at most
    HELD = 8  # tokens held back at most: only the last three can still become a character

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        """``context``: the tokens before the first that is pushed."""
        self.decode = decode
        whole, incomplete = self._split(context)
        self.ids = [*whole, *incomplete]
        self.prefix_at = 0  # place in ``ids`` at which the context of the next decoding begins
        self.read_at = len(whole)  # first token whose text is not given out
        self._known = self._new(len(self.ids)).rstrip(REPLACEMENT)  # text in front of that character, in its token

    def _split(self, context: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """The last tokens that are whole characters, and after them those of a character that is not complete yet.

        The former must not begin inside a character either: byte-fallback decoders replace every byte of such a run.
        """
        for half in range(4):
            end = len(context) - half
            if end <= 0:
                return (), context
            for length in range(min(self.CONTEXT, end), 0, -1):
                whole = context[end - length : end]
                if REPLACEMENT not in self.decode(tuple(whole)):
                    return whole, context[end:]
        return (), ()

    def push(self, token: int) -> str:
        """The text that ``token`` completes."""
        self.ids += (token,)
        end = len(self.ids)
        text = self._new(end)
        if text and text[-1] != REPLACEMENT:
            return self._take(text, end)
        if end - self.read_at >= self.HELD:
            return self._take(self._new(end - 3), end - 3)
        return ""

    def flush(self) -> str:
        """The held-back text, at the end of the output."""
        return self._take(self._new(len(self.ids)), len(self.ids))

    def _new(self, end: int) -> str:
        """The text that the tokens up to ``end`` add to what has been given out."""
        before = self.decode(tuple(self.ids[self.prefix_at : self.read_at]))
        return self.decode(tuple(self.ids[self.prefix_at : end]))[len(before) :]

    def _take(self, piece: str, end: int) -> str:
        self.prefix_at, self.read_at = self.read_at, end
        piece, self._known = piece.removeprefix(self._known), ""
        if self.prefix_at > 256:  # the buffer stays small however long the output is
            del self.ids[: self.prefix_at]
            self.read_at -= self.prefix_at
            self.prefix_at = 0
        return piece


class StopStrings:
    """Holds text back while it may be the beginning of a stop string. The stop string itself is never released."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.held = ""  # text that may be the beginning of a stop string
        self.found: str | None = None  # the stop string that has occurred

    def push(self, piece: str, ends: bool = True) -> str:
        """The text to release; ``found`` is set when ``piece`` completes a stop string that ``ends`` the output."""
        if not self.stops:
            return piece
        text, before = self.held + piece, len(self.held)
        # the first complete one wins, as if the text had come one character at a time
        complete = [
            (at + len(stop), at, stop)
            for stop in self.stops
            if ends and (at := text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if complete:
            self.held = ""
            _, at, self.found = min(complete)
            return text[:at]
        begun = (n for stop in self.stops for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n]))
        keep = max(begun, default=0)
        self.held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The held-back text, at the end of the output."""
        text, self.held = self.held, ""
        return text
