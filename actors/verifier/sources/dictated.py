"""Output tokens that a request dictates, as masks of one token: a text is scored so, and a long thought is ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from actors.models import DEFAULT_NODES, ROOT, Codec
from actors.tree.tree import FORCED, TokenTree
from actors.verifier.sources.binding import Binding
from actors.verifier.sources.bits import GRAMMAR
from protocols.limits import MAX_NODES
from protocols.messages import Dictation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Dictated:
    """A request's :class:`Dictation`, and what binds the rest of its output, if anything does."""

    def __init__(
        self,
        wanted: Dictation,
        codec: Codec,
        vocab_size: int,
        grammar: Binding | None,
        generated: Sequence[int],
    ) -> None:
        self.tokens = tuple(wanted.tokens or codec.encode(wanted.text, special_tokens=False))
        self._at, self._wanted = wanted.at, wanted
        self._codec, self._words = codec, (vocab_size + 31) // 32
        self._grammar = grammar
        self._output = list(generated)
        # by the tokens between the output and the place: whether the text in front of the place wants the dictated one
        self._wants: dict[tuple[int, ...], bool] = {}

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        """See :class:`actors.models.Constraint`."""
        import numpy as np

        rows = (
            np.full((1 + len(tokens), self._words), -1, np.int32)
            if self._grammar is None
            else self._grammar.masks(tokens, parents)
        )
        if len(self._output) >= self._at + len(self.tokens):
            return rows
        paths: list[list[int]] = [[]]  # tokens from the root to each row
        for token, parent in zip(tokens, parents, strict=True):
            paths.append([*paths[0 if parent == ROOT else parent + 1], token])
        for row, path in enumerate(paths):
            if (due := self._due(path)) is not None:
                rows[row] = 0
                rows.view(np.uint32)[row, due >> 5] = 1 << (due & 31)
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
        return 1.0 if self._grammar is None else self._grammar.row_us()

    def most_nodes(self) -> int:
        return MAX_NODES if self._grammar is None else self._grammar.most_nodes()

    def fit(self, tree: TokenTree) -> None:
        """Put the tokens that are due into the tree, as branches of probability one."""
        if self._grammar is not None:
            self._grammar.fit(tree)
        node, path = tree.root, list[int]()
        while len(path) < DEFAULT_NODES and (due := self._due(path)) is not None:
            for child in list(node.children.values()):
                if child.token != due:
                    tree.drop(child)
            node = tree.add(node, due, 0.0, FORCED, GRAMMAR)
            path.append(due)

    def commit(self, tokens: Sequence[int]) -> None:
        """``tokens`` were added to the output."""
        if len(self._output) < self._at:
            self._wants.clear()
        self._output.extend(tokens)
        if self._grammar is not None:
            self._grammar.commit(tokens)
