"""What the output of a request must follow: a grammar, dictated tokens, or tokens that are withheld."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.models import Constraint
from actors.tree.tree import TokenTree


class Binding(Constraint, Protocol):
    def row_us(self) -> float:
        """Time of the mask of a window's row."""
        ...

    def most_nodes(self) -> int:
        """Nodes of a window that there is time for."""
        ...

    def fit(self, tree: TokenTree) -> None:
        """Drop the drafts that are not allowed, and add what must follow."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """``tokens`` were added to the output."""
        ...
