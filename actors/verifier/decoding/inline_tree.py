"""What a draft model that the verifier runs itself holds of one request: a mirror of its text, and the nodes of its
tree that are expanded. See :mod:`actors.verifier.drafters.inline`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

from actors.estimate import Estimate
from actors.models import DraftModel, Expansion, Leaf
from actors.tree.calibration import TextCalibration
from actors.tree.tree import ROOT, Node, TokenTree
from protocols.errors import CannotDraft, PoolFull

log = logging.getLogger("duoactor.verifier")
BRANCHES = 4  # candidates of a leaf that join the tree, and ...
MIN_CHANCE = 0.01  # ... the least of one beside the likeliest: as a drafter's trees (actors.drafter.growth)
DOUBT = 0.03  # of a round's weight: a text without drafts is believed, slowly, to become like others again


_first: Callable[[tuple[float, Node]], float] = itemgetter(0)


class InlineTree:
    def __init__(
        self,
        rid: str,
        tree: TokenTree,
        model: DraftModel,
        handle: int,
        stop_tokens: frozenset[int],
        end: int,
        calibration: TextCalibration,
    ) -> None:
        """``tree``: the request's, which others plant into as well. ``handle``: of the mirror. Nothing is
        drafted behind ``stop_tokens``, nor at positions from ``end`` on."""
        self.rid, self.tree, self.model, self.handle = rid, tree, model, handle
        self.stop_tokens, self.end, self.calibration = stop_tokens, end, calibration
        self.agreement = Estimate(calibration.usual, weight=4, memory=48)  # how often its first choice is right
        self.lost = False  # the model cannot mirror the text any more
        self._expansions: dict[Node, Expansion] = {}
        self._slots: set[int] = set()
        self._leaves: list[Node] = []
        self._untold: list[int] = []  # committed tokens that the model has not been told of

    # --- growing -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A round is about to begin with the tree as it is."""
        tree = self.tree
        self._leaves = [*self._open(tree.nodes())] if tree.root.expanded else [tree.root]

    def _open(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Those that may be expanded next: their ancestors are."""
        for node in nodes:
            above = node.parent
            expandable = not node.expanded and above is not None and above.expanded
            if expandable and node.token not in self.stop_tokens and node.position + 1 < self.end:
                yield node

    def promises(self, least: float) -> list[tuple[float, Node]]:
        """Nodes to expand, with the tokens that the target should follow because of it, where those are more than
        ``least``. The root goes alone."""
        room = self.model.scratch_slots - len(self._slots)
        found = [(promise, node) for node in self._leaves if (promise := self._promise(node)) > least]
        return found if len(found) <= room else sorted(found, key=_first, reverse=True)[:room]

    def _promise(self, node: Node) -> float:
        """What the tree holds behind it already, retrieved perhaps, the draft would only say again."""
        known = 0.0
        for child in node.children.values():
            known += math.exp(child.logprob)
        return math.exp(min(0.0, self.tree.total(node))) * max(0.0, self.agreement.mean - known)

    def leaf(self, node: Node) -> Leaf:
        root = self.tree.root
        if node is root:
            return Leaf(self.handle, node.token, (), is_root=True)
        path: list[int] = []
        above = node.parent
        while above is not None and above is not root:
            path.append(above.slot)
            above = above.parent
        return Leaf(self.handle, node.token, tuple(reversed(path)))

    def expanded(self, node: Node, expansion: Expansion, vocab_size: int) -> None:
        """``vocab_size``: the target's; ids beyond are no candidates."""
        node.expanded, node.slot = True, expansion.slot
        if expansion.slot >= 0:
            self._slots.add(expansion.slot)
        known = [(t, p) for t, p in zip(expansion.tokens, expansion.probs, strict=True) if t < vocab_size][:BRANCHES]
        tokens, probs = tuple(t for t, _ in known), tuple(p for _, p in known)
        self._expansions[node] = Expansion(expansion.slot, tokens, probs)
        for rank, (token, prob) in enumerate(known):
            chance = min(0.999, max(1e-9, self.calibration.probability(rank, prob)))
            if rank and chance < MIN_CHANCE:
                break
            self.tree.add(node, token, math.log(chance), rank)
        self._leaves.remove(node)
        self._leaves.extend(self._open(node.children.values()))

    def leave(self) -> None:
        """Its nodes stay in the request's tree, as if they had been retrieved: another model's may be next."""
        for node in self.tree.root.subtree():
            node.expanded, node.slot = False, ROOT

    # --- the target's word -------------------------------------------------------------------------------------------

    def advance(self, tokens: Sequence[int]) -> None:
        """Commit ``tokens`` in the tree and, where the model may have computed some of them, in the mirror. For a text
        that rests that waits until the model is asked again: it took 25 us of each round."""
        tree = self.tree
        self._learn(tree.root, tokens)
        held = tree.advance(tokens).nodes
        if not self._slots:
            self._expansions.clear()
            self._untold += tokens
            return
        slots = [node.slot if node is not None else ROOT for node in held]
        alive = {node.slot for node in tree.nodes()}
        dead = [slot for slot in self._slots if slot not in alive and slot not in slots]
        self._slots &= alive
        self._expansions = {node: known for node, known in self._expansions.items() if node.slot in self._slots}
        self._commit(tokens, slots, dead)

    def catch_up(self) -> None:
        """Before the model is asked: it hears of all that is committed."""
        if self._untold:
            self._commit(self._untold, [ROOT] * len(self._untold))
            self._untold = []

    def _commit(self, tokens: Sequence[int], slots: Sequence[int], dead: Sequence[int] = ()) -> None:
        try:
            self.model.commit(self.handle, tokens, slots)
            if dead:
                self.model.release(self.handle, dead)
        except Exception as error:
            if not isinstance(error, (CannotDraft, PoolFull)):
                log.error("request %s goes on without drafts: the draft model failed", self.rid, exc_info=error)
            self.lost = True

    def _learn(self, root: Node, tokens: Sequence[int]) -> None:
        if root not in self._expansions:
            self.agreement.add(self.calibration.usual, weight=DOUBT)
        node: Node | None = root
        for token in tokens:
            if node is None or (expansion := self._expansions.get(node)) is None:
                return
            hit = expansion.tokens.index(token) if token in expansion.tokens else -1
            self.calibration.observe(expansion.probs, hit)
            self.agreement.add(float(hit == 0))
            node = node.children.get(token)
