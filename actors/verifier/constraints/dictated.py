"""Output tokens that a request dictates, as masks of one token: a text is scored so, and a long thought is ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actors.models import DEFAULT_NODES, Codec
from actors.tree.tree import FORCED, TokenTree
from actors.verifier.constraints.binding import Binding, paths
from actors.verifier.sources.bits import GRAMMAR
from protocols.messages import Dictation


class Dictated(Binding):
    """A request's :class:`Dictation`, and what binds the rest of its output, if anything does."""

    def __init__(
        self,
        wanted: Dictation,
        codec: Codec,
        vocab_size: int,
        grammar: Binding | None,
        generated: Sequence[int],
    ) -> None:
        super().__init__(vocab_size, generated)
        self.tokens = tuple(wanted.tokens or codec.encode(wanted.text, special_tokens=False))
        self._at, self._wanted, self._codec = wanted.at, wanted, codec
        self._rest = grammar or Binding(vocab_size)
        # by the tokens between the output and the place: whether the text in front of the place wants the dictated one
        self._wants: dict[tuple[int, ...], bool] = {}

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        rows = self._rest.masks(tokens, parents)
        if len(self._output) < self._at + len(self.tokens):
            for row, path in zip(rows.view(np.uint32), paths(tokens, parents), strict=True):
                if (due := self._due(path)) is not None:
                    row[:] = 0
                    row[due >> 5] = 1 << (due & 31)
        return rows

    def _due(self, path: Sequence[int]) -> int | None:
        """The token that is dictated behind a path below the committed output."""
        at = len(self._output) + len(path) - self._at
        if not 0 <= at < len(self.tokens):
            return None
        between = tuple(path[: max(0, self._at - len(self._output))])
        if between not in self._wants:
            self._wants[between] = self._is_wanted([*self._output, *between][: self._at])
        return self.tokens[at] if self._wants[between] else None

    def _is_wanted(self, before: Sequence[int]) -> bool:
        """Whether the text is dictated behind those tokens, which are a long thought."""
        if self._wanted.tokens:
            return True
        text = self._codec.decode(before, False)
        return self._wanted.text not in text and self._wanted.behind in text

    def row_us(self) -> float:
        return self._rest.row_us()

    def most_nodes(self) -> int:
        return self._rest.most_nodes()

    def fit(self, tree: TokenTree) -> None:
        """Put the tokens that are due into the tree, as branches of probability one."""
        self._rest.fit(tree)
        node, path = tree.root, list[int]()
        while len(path) < DEFAULT_NODES and (due := self._due(path)) is not None:
            tree.keep_only(node, {due})
            node = tree.add(node, due, 0.0, FORCED, GRAMMAR)
            path.append(due)

    def commit(self, tokens: Sequence[int]) -> None:
        if len(self._output) < self._at:
            self._wants.clear()
        super().commit(tokens)
        self._rest.commit(tokens)
