"""What the target held likeliest at each place of a request's output, for a learner that asked for it."""

from __future__ import annotations

import numpy as np

from actors.models import Likeliest

MAX_TOKENS = 16_384  # of a text that a learner is told
PACKED = 256  # tokens: what is known of more is brought into 6 bytes for each alternative, as it is told
NONE = -1  # an id: none, or not known
LEAST = 1e-30  # probability, whose logarithm float16 can hold


class Alternatives:
    def __init__(self, count: int) -> None:
        """``count``: of each token."""
        self.count = count
        self.tokens = 0
        self._ids, self._logprobs = bytearray(), bytearray()
        self._pending: list[tuple[int, Likeliest | None]] = []
        self._pending_tokens = 0

    def add(self, tokens: int, found: Likeliest | None) -> None:
        """``tokens`` were committed, and ``found`` tells of as many places or more; None: nothing is known of them."""
        self.tokens += tokens
        self._pending.append((tokens, found))
        self._pending_tokens += tokens
        if self.tokens > MAX_TOKENS:  # nobody will be told
            self._pending.clear()
            self._pending_tokens = 0
            self._ids, self._logprobs = bytearray(), bytearray()
        elif self._pending_tokens >= PACKED:
            self._pack()

    def packed(self) -> tuple[bytes, bytes]:
        """``top_ids`` and ``top_logprobs`` of ``Finished``."""
        self._pack()
        return bytes(self._ids), bytes(self._logprobs)

    def _pack(self) -> None:
        shape = self._pending_tokens, self.count
        ids, probabilities = np.full(shape, NONE, "<i4"), np.ones(shape, np.float32)
        at = 0
        for tokens, found in self._pending:
            if found is not None:
                place = slice(at, at + tokens), slice(found.ids.shape[1])
                ids[place], probabilities[place] = found.ids[:tokens], found.probabilities[:tokens]
            at += tokens
        self._ids += ids.tobytes()
        self._logprobs += np.log(np.maximum(probabilities, LEAST)).astype("<f2").tobytes()
        self._pending.clear()
        self._pending_tokens = 0
