"""Tokens that a request keeps out of its output: ends that come too early, and the last tokens of bad words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from actors.models import ROOT, Codec
from actors.tree.tree import TokenTree
from protocols.limits import MAX_NODES
from protocols.messages import Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Withheld:
    """A request's ``min_tokens`` and ``bad_words``, as vLLM means them."""

    def __init__(
        self, sampling: Sampling, eos: frozenset[int], codec: Codec, vocab_size: int, generated: Sequence[int]
    ) -> None:
        self._ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos)
        self._min_tokens, self._words = sampling.min_tokens, (vocab_size + 31) // 32
        self._last: dict[tuple[int, ...], set[int]] = {}  # by the tokens of a bad word before its last
        for word in sampling.bad_words:
            for spelt in (word.lstrip(), " " + word.lstrip()):
                ids = codec.encode_inside(spelt)
                if ids and ids[-1] < vocab_size:
                    self._last.setdefault(tuple(ids[:-1]), set()).add(ids[-1])
        self._lengths = sorted({len(before) for before in self._last})
        self._output = list(generated)

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        """See :class:`actors.models.Constraint`."""
        import numpy as np

        rows = np.full((1 + len(tokens), self._words), 0xFFFFFFFF, np.uint32)
        tail = self._output[-self._lengths[-1] :] if self._lengths and self._lengths[-1] else []
        paths: list[list[int]] = [[]]  # tokens from the root to each row
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*paths[0 if parent == ROOT else parent + 1], token])
        for row, path in enumerate(paths):
            for token in self._withheld([*tail, *path], len(self._output) + len(path)):
                rows[row, token >> 5] &= ~np.uint32(1 << (token & 31))
        return rows.view(np.int32)

    def _withheld(self, text: Sequence[int], written: int) -> Iterator[int]:
        """The tokens that must not follow. ``text``: the end of an output of ``written`` tokens."""
        if written < self._min_tokens:
            yield from self._ends
        for length in self._lengths:
            if length <= len(text):
                yield from self._last.get(tuple(text[len(text) - length :]), ())

    def row_us(self) -> float:
        return 1.0

    def most_nodes(self) -> int:
        return MAX_NODES

    def fit(self, tree: TokenTree) -> None:
        """Nothing is forced, and a draft of a withheld token is refused like any other."""

    def commit(self, tokens: Sequence[int]) -> None:
        """``tokens`` were added to the output."""
        self._output.extend(tokens)
