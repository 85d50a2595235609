"""Tokens that a request keeps out of its output: ends that come too early, and the last tokens of bad words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from actors.models import Codec
from actors.verifier.constraints.binding import Binding, paths
from protocols.messages import Sampling


class Withheld(Binding):
    """A request's ``min_tokens`` and ``bad_words``, as vLLM means them."""

    def __init__(
        self, sampling: Sampling, eos: frozenset[int], codec: Codec, vocab_size: int, generated: Sequence[int]
    ) -> None:
        super().__init__(vocab_size, generated)
        self._ends = sampling.ends(eos)
        self._min_tokens = sampling.min_tokens
        self._last: dict[tuple[int, ...], set[int]] = {}  # by the tokens of a bad word before its last
        for word in sampling.bad_words:
            for spelt in (word.lstrip(), " " + word.lstrip()):
                ids = codec.encode_inside(spelt)
                if ids and ids[-1] < vocab_size:
                    self._last.setdefault(tuple(ids[:-1]), set()).add(ids[-1])
        self._lengths = sorted({len(before) for before in self._last})

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        rows = super().masks(tokens, parents).view(np.uint32)
        tail = self._output[-self._lengths[-1] :] if self._lengths and self._lengths[-1] else []
        for row, path in zip(rows, paths(tokens, parents), strict=True):
            for token in self._withheld([*tail, *path], len(self._output) + len(path)):
                row[token >> 5] &= ~np.uint32(1 << (token & 31))
        return rows.view(np.int32)

    def _withheld(self, text: Sequence[int], written: int) -> Iterator[int]:
        """The tokens that must not follow. ``text``: the end of an output of ``written`` tokens."""
        if written < self._min_tokens:
            yield from self._ends
        for length in self._lengths:
            if length <= len(text):
                yield from self._last.get(tuple(text[len(text) - length :]), ())
