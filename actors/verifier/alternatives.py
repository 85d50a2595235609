"""The target's likeliest tokens at each place of a request's output, kept for a learner that asked for them."""

from __future__ import annotations

import numpy as np

from actors.models import Likeliest

MAX_TOKENS = 16_384  # of one text: of longer ones nothing is kept
PACKED = 256  # places after which they are packed, into 6 bytes for each alternative
NONE = -1  # the id where there is no alternative, or none is known
LEAST = 1e-30  # least probability: its logarithm fits into float16


class Alternatives:
    """Of one request. They are kept as ``Finished`` sends them: int32 ids and float16 log-probabilities."""

    def __init__(self, count: int) -> None:
        """``count``: alternatives at each place."""
        self.count = count
        self.tokens = 0  # places so far
        self._ids, self._logprobs = bytearray(), bytearray()  # packed
        self._pending: list[tuple[int, Likeliest | None]] = []  # not packed yet: (places, what is known of them)
        self._pending_tokens = 0

    def add(self, tokens: int, found: Likeliest | None) -> None:
        """``tokens`` were committed. ``found`` has as many places, or more; None: nothing is known of them."""
        self.tokens += tokens
        self._pending.append((tokens, found))
        self._pending_tokens += tokens
        if self.tokens > MAX_TOKENS:  # the learner will not be told of this text
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
