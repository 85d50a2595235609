"""A draft head of the target, on its device: it reads the states of committed tokens, and its drafts join the tree.

It is a draft model between forwards (:mod:`actors.verifier.sources.inline`) that works beside a drafter too: the
drafter's nodes are in the same tree, and a head's are cheap. An operator may have another take its place between two
rounds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol, cast

from actors.models import DraftModel
from actors.tree.tree import Node
from actors.verifier.sources.bits import HEAD
from actors.verifier.sources.inline import InlineDraft
from actors.verifier.sources.inline_tree import InlineTree
from protocols.errors import ModelError
from protocols.messages import Load

# Loads the head of that name in place of an earlier head, and measures it. From then on it gets the target's states.
# Raises ModelError.
Loader = Callable[[str, DraftModel], Awaitable[tuple[DraftModel, Mapping[int, float]]]]


log = logging.getLogger("duoactor.verifier")


class HeadModel(DraftModel, Protocol):
    def follow(self, handle: int, source: int) -> None:
        """The mirror has the text of the target's request ``source``: the head reads its states."""
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
    """A round begins at the root: behind the target's states the head drafts better than behind its own."""

    bit = HEAD

    def committed(self, root: Node, held: Sequence[Node | None], tokens: Sequence[int]) -> list[int]:
        ranks = super().committed(root, [None] * len(tokens), tokens)
        self.leave()
        for child in [*self.tree.root.children]:
            if child.sources == self.bit:
                self.tree.drop(child)
        return ranks


class HeadSource(InlineDraft):
    name, bit, exclusive = "head", HEAD, False
    tree_of = HeadTree
    names: Sequence[str] = ()  # names of the heads that drafted, the latest last
    _others: Loader | None = None

    def exchanges(self, name: str, load: Loader) -> None:
        """Let others take the place of this head, called ``name``, from now on."""
        self.names, self._others, self._swapping = [name], load, asyncio.Lock()

    def load(self, message: Load) -> None:
        """A learner trains no heads."""

    async def swap(self, name: str) -> str:
        """Draft with that head, or the one before, from the next round on. Raises ModelError, and goes on as before."""
        none = ModelError("no other head was here before; name one: `duoactor swap head DIRECTORY`")
        if self._others is None:
            raise none
        async with self._swapping:
            if not (name or self.names[1:]):
                raise none
            left = self.model_id
            model, steps = await self._others(name or self.names[-2], self.model)
            self.names = [*self.names, name] if name else self.names[:-1]
            self.generations.serve(model, Load(0, name))
            self.model_id = model.info.model_id
            self.measured(steps)
            said = f"drafts with {self.model_id} from now on, no more with {left}"
            log.info("%s", said)
            return said

    def _opened(self, tree: InlineTree) -> None:
        cast(HeadModel, tree.model).follow(tree.handle, tree.stream.handle)
