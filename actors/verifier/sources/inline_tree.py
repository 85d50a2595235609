"""One stream as the draft model between forwards knows it: a mirror of its text, and the nodes of its tree that are
expanded. See :mod:`actors.verifier.sources.inline`."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from operator import itemgetter

from actors.calibration import MIN_CHANCE, TextCalibration, candidates
from actors.models import DraftModel, Expansion
from actors.tree.tree import NO_SLOT, OWN, Node
from actors.verifier.sources.bits import INLINE
from actors.verifier.streams import Stream
from protocols.errors import CannotDraft, PoolFull

log = logging.getLogger("duoactor.verifier")


class InlineTree:
    bit = INLINE  # in :attr:`Node.sources`

    def __init__(
        self,
        stream: Stream,
        model: DraftModel,
        handle: int,
        stop_tokens: frozenset[int],
        end: int,
        calibration: TextCalibration,
    ) -> None:
        """``handle``: the mirror's. Nothing is drafted behind ``stop_tokens``, nor at positions from ``end`` on."""
        self.stream, self.tree, self.model, self.handle = stream, stream.tree, model, handle
        self.stop_tokens, self.end, self.calibration = stop_tokens, end, calibration
        self.missing = 0  # tokens that it had not computed when it was read last
        self._slots: set[int] = set()  # scratch slots that are in use
        self._leaves: dict[Node, float] = {}  # accepted tokens to expect of the nodes that may be expanded next
        self._least = self._agreement = 0.0  # of this round
        self.chances: list[float] = []  # chances of the tree's nodes: that the target follows the path to each
        self._untold: list[tuple[int, int]] = []  # committed tokens that the model does not know, with their slots

    def begin(self, least: float) -> None:
        """Before a round: find the leaves of the tree as it is. ``least``: chance of a node that is worth a row."""
        self._least, self._agreement = least, self.calibration.agreement
        self._leaves.clear()
        root, nodes = self.tree.root, self.tree.nodes()
        base, exp = root.total, math.exp
        self.chances = [exp(node.total - base) if node.total < base else 1.0 for node in nodes]
        self._open(nodes if root.expansion is not None else [root])

    def _chance(self, node: Node) -> float:
        base = self.tree.root.total
        return math.exp(node.total - base) if node.total < base else 1.0

    def _open(self, nodes: Iterable[Node]) -> None:
        """The root, or those of ``nodes`` whose ancestors are expanded, are leaves now. Each promises the chance that
        the path to it is accepted and none of the tokens retrieved behind it follows, times the draft's agreement;
        that does not change when another is expanded."""
        for node in nodes:
            above, ends = node.parent, node.token in self.stop_tokens or node.position + 1 >= self.end
            if above is None or (node.expansion is None and above.expansion is not None and not ends):
                known = 0.0
                for child in node.children:
                    if child.rank == OWN:
                        known += math.exp(child.logprob)
                self._leaves[node] = self._chance(node) * (1.0 - known) * self._agreement if known < 1.0 else 0.0

    def promises(self) -> list[tuple[float, InlineTree, Node]]:
        """Leaves to expand, each with the accepted tokens that it should bring, where those are worth a row: no more
        than there are scratch slots for. The root is the only leaf until it is expanded."""
        least, leaves = self._least, self._leaves
        found = [(leaves[node], self, node) for node in leaves if leaves[node] > least]
        if len(found) > (room := self.model.scratch_slots - len(self._slots)):
            found.sort(key=itemgetter(0), reverse=True)
            del found[max(0, room) :]
        return found

    def expanded(self, node: Node, expansion: Expansion) -> None:
        """The draft model has expanded this node: its likely children join the tree."""
        reached = self._chance(node)
        least = max(MIN_CHANCE, self._least) / max(reached, MIN_CHANCE)  # a child's least chance, but for the likeliest
        node.slot = expansion.slot
        if expansion.slot >= 0:
            self._slots.add(expansion.slot)
        node.expansion = expansion
        for rank, token, logprob in candidates(self.calibration, expansion.tokens, expansion.probs, least):
            self.tree.add(node, token, logprob, rank, self.bit)
            self.chances.append(reached * math.exp(logprob))
        del self._leaves[node]
        self._open(node.children)

    def leave(self) -> None:
        """The draft model stops drafting for it. Its nodes stay as if retrieved, so that another model expands them."""
        for node in self.tree.root.subtree():
            node.expansion, node.slot = None, NO_SLOT

    def committed(self, root: Node, held: Sequence[Node | None], tokens: Sequence[int]) -> list[int]:
        """``tokens`` were committed behind ``root``, of which the tree ``held`` some; the model is told by
        :meth:`catch_up`. Returns their ranks, see :meth:`TextCalibration.learn`."""
        slots = [node.slot if node is not None else NO_SLOT for node in held]
        self._untold += zip(tokens, slots, strict=True)
        return self.calibration.learn(root, tokens)

    def catch_up(self) -> bool:
        """Before the model expands anything, tell it what is committed. Returns whether it still mirrors the text."""
        if not self._untold:
            return True
        tokens, slots = zip(*self._untold, strict=True)
        self._untold = []
        alive = {node.slot for node in self.tree.nodes()}
        dead = self._slots - alive - {*slots}
        self._slots &= alive
        try:
            self.model.commit(self.handle, tokens, slots)
            if dead:
                self.model.release(self.handle, [*dead])
        except Exception as error:
            if not isinstance(error, (CannotDraft, PoolFull)):
                rid = self.stream.rid
                log.error("request %s goes on without drafts: the draft model failed", rid, exc_info=error)
            return False
        return True
