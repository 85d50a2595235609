"""From token ids to text as it streams: whole characters only, and nothing behind a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
REPLACEMENT = "�"


class Detokenizer:
    """Incremental decoding. A token's piece is the text that it completes; a half character is held back.

    ``decode`` turns ids into text. Tokenizers may treat the start of a sequence specially, so each piece is the
    difference of two decodings that share a few tokens of context.
    """

    CONTEXT = 6

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self.decode = decode
        self.ids: list[int] = list(context[-self.CONTEXT :])
        self.prefix_at = 0
        self.read_at = len(self.ids)

    def push(self, token: int) -> str:
        self.ids.append(token)
        before = self.decode(self.ids[self.prefix_at : self.read_at])
        text = self.decode(self.ids[self.prefix_at :])
        if text.endswith(REPLACEMENT) or len(text) <= len(before):
            return ""
        return self._take(text[len(before) :])

    def flush(self) -> str:
        """What is still held back, at the end of the output."""
        before = self.decode(self.ids[self.prefix_at : self.read_at])
        text = self.decode(self.ids[self.prefix_at :])
        return self._take(text[len(before) :])

    def _take(self, piece: str) -> str:
        self.prefix_at, self.read_at = self.read_at, len(self.ids)
        if self.prefix_at > 256:  # the buffer stays small however long the output grows
            del self.ids[: self.prefix_at]
            self.read_at -= self.prefix_at
            self.prefix_at = 0
        return piece


class StopStrings:
    """Holds text back while it may be the beginning of a stop string. The stop string itself is never released."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.held = ""
        self.found: str | None = None  # the one that is complete

    def push(self, piece: str) -> tuple[str, bool]:
        """(text to release, whether a stop string is complete)."""
        if not self.stops:
            return piece, False
        text = self.held + piece
        # The one that is complete first wins, as if the text had come one character at a time.
        ends = [(at + len(stop), at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            self.held = ""
            _, at, self.found = min(ends)
            return text[:at], True
        keep = max((n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self.held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep], False

    def flush(self) -> str:
        text, self.held = self.held, ""
        return text
