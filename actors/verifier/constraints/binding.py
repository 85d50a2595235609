"""What the output of a request must follow: a grammar, dictated tokens, or tokens that are withheld."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actors.models import ROOT, Constraint
from actors.tree.tree import TokenTree
from protocols.limits import MAX_NODES


class Binding(Constraint):
    """Allows every token, and takes next to no time; its subclasses say what they do otherwise."""

    def __init__(self, vocab_size: int, generated: Sequence[int] = ()) -> None:
        """``generated``: the output so far."""
        self._words, self._output = (vocab_size + 31) // 32, list(generated)

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> NDArray[np.int32]:
        """See :class:`actors.models.Constraint`."""
        return np.full((1 + len(tokens), self._words), -1, np.int32)

    def row_us(self) -> float:
        """Time of the mask of a window's row."""
        return 1.0

    def most_nodes(self) -> int:
        """Nodes of a window that there is time for."""
        return MAX_NODES

    def fit(self, tree: TokenTree) -> None:
        """Drop drafts that are not allowed, and add what must follow."""

    def commit(self, tokens: Sequence[int]) -> None:
        """``tokens`` were added to the output."""
        self._output.extend(tokens)


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[list[int]]:
    """The tokens from the root to each row of a window."""
    found: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        found.append([*found[0 if parent == ROOT else parent + 1], token])
    return found
