"""A draft head of the target, on its device: it reads the states of committed tokens, and its drafts join the tree.

It is a draft model between forwards (:mod:`actors.verifier.sources.inline`) that works beside a drafter too: the
drafter's nodes are in the same tree, and a head's are cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, Protocol, cast

from actors.models import DraftModel
from actors.tree.tree import NO_SLOT, Node
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.inline_tree import InlineTree
from actors.verifier.sources.source import HEAD
from actors.verifier.streams import Stream


class HeadModel(DraftModel, Protocol):
    def follow(self, handle: int, source: int) -> None:
        """The mirror has the text of the target's request ``source``, whose states the head reads."""
        ...


class OnThread:
    """A model that computes on the target's thread, which has a team of OpenMP's; the caller waits for it. A team of
    the caller's own would slow the target down (:mod:`actors.verifier.compute`)."""

    COMPUTES = ("expand", "prefill", "missing")

    def __init__(self, model: DraftModel, thread: Executor) -> None:
        self._model, self._thread = model, thread

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if name not in self.COMPUTES:
            return found
        return lambda *arguments: self._thread.submit(found, *arguments).result()


class HeadTree(InlineTree):
    """A round begins at the root: with the target's states of what was accepted, the head drafts better than below
    states of its own."""

    bit = HEAD

    def committed(self, root: Node, held: Sequence[Node | None], tokens: Sequence[int]) -> None:
        self._learn(root, tokens)
        self._untold += tokens
        slots, self._slots = [*self._slots], set()
        self._expansions.clear()
        self._release(slots)
        new = self.tree.root
        for node in new.subtree():
            node.expanded, node.slot = False, NO_SLOT
        for child in [child for child in new.children.values() if child.sources == self.bit]:
            self.tree.drop(child)


class HeadSource(InlineDraft):
    name, bit, exclusive = "head", HEAD, False
    tree_of = HeadTree

    def _opened(self, tree: InlineTree, stream: Stream) -> None:
        cast(HeadModel, self.model).follow(tree.handle, stream.handle)
