"""A drafter's prefill of a long text during running streams: in chunks that alternate with draft steps."""

from __future__ import annotations

# How long a chunk may take: nothing else happens meanwhile. 50 ms are a few rounds of a target without drafts, and a
# tenth of the interval between two heartbeats.
CHUNK_S = 0.05
# Tokens. The model's weights are read once for a chunk: less than 16 cost more per token, more than 256 no less.
SMALLEST, LARGEST = 16, 256


class Prefill:
    """Size and turn of the next chunk. Times are seconds."""

    def __init__(self, step_s: float) -> None:
        """``step_s``: a draft step of one leaf; no token of a chunk takes longer."""
        self._token_s = step_s
        self._share_s = 0.0  # what draft steps may still take before the next chunk

    @property
    def chunk(self) -> int:
        """Tokens of the next chunk."""
        return int(min(LARGEST, max(SMALLEST, CHUNK_S / self._token_s)))

    def time_s(self, tokens: int) -> float:
        """Expected time of the next tokens of a text."""
        return tokens * self._token_s

    def due(self, growing: bool) -> bool:
        """Whether a chunk comes next. ``growing``: there are trees to grow, which get as much time as chunks."""
        return not growing or self._share_s <= 0.0

    def grew(self, spent_s: float) -> None:
        """A draft step was made."""
        self._share_s -= spent_s

    def computed(self, tokens: int, spent_s: float) -> None:
        """A chunk was computed."""
        self._share_s = spent_s
        if tokens >= self.chunk:  # the end of a text says little of what a whole chunk takes
            self._token_s = max(1e-9, spent_s / tokens)
