"""How a drafter grows one tree: which leaves to expand next, and which of their children to keep.

A growth works in *phases*. A phase begins when the lease opens and after every verdict; it ends when its budget of
draft tokens is used up. ``wanted`` names leaves for the next batched forward, ``expanded`` takes the candidates.
"""

from __future__ import annotations

import math
from typing import Protocol

from actors.models import Expansion
from actors.tree.tree import Node, TokenTree
from protocols.messages import Method, Plan

MAX_CHAIN = 32  # draft tokens of a phase without a gamma: the largest window


class Chances(Protocol):
    """A calibration, see :mod:`actors.tree.calibration`."""

    def probability(self, rank: int, probability: float) -> float: ...


class Growth(Protocol):
    sequences: int  # k of this phase; 0 where the notion does not apply

    @property
    def forked(self) -> Node | None:
        """The node below which this phase's k sequences begin, once k is decided."""

    def begin(self, tree: TokenTree, plan: Plan) -> None: ...
    def wanted(self, width: int) -> list[Node]:
        """Leaves for the next forward, at most ``width``; empty when the phase is over."""
        ...

    def expanded(self, node: Node, expansion: Expansion) -> None: ...


class NoGrowth:
    """Vanilla: nothing is drafted."""

    sequences = 0
    forked = None

    def begin(self, tree: TokenTree, plan: Plan) -> None: ...
    def wanted(self, width: int) -> list[Node]:
        return []

    def expanded(self, node: Node, expansion: Expansion) -> None:
        raise AssertionError("vanilla expands nothing")


class ChainGrowth:
    """SpS and PEARL: one chain of gamma tokens below the deepest surviving token."""

    sequences = 1
    forked = None

    def __init__(self, stop_tokens: frozenset[int]) -> None:
        self.stop_tokens = stop_tokens
        self.tip: Node | None = None
        self.left = 0

    def begin(self, tree: TokenTree, plan: Plan) -> None:
        self.tree = tree
        chain = tree.chain(1 << 16)
        self.tip = chain[-1] if chain else tree.root
        # PEARL drafts gamma more behind a surviving chain; SpS takes turns, so its chain is gamma long in all.
        self.left = _gamma(plan) - (len(chain) if plan.method == Method.SPS else 0)

    def wanted(self, width: int) -> list[Node]:
        if self.left <= 0 or self.tip is None or self.tip.token in self.stop_tokens:
            return []
        return [self.tip]

    def expanded(self, node: Node, expansion: Expansion) -> None:
        if node is self.tip and not expansion.tokens:
            self.left = 0  # a proposer has nothing to say here
        elif node is self.tip:
            self.tip = self.tree.add(node, expansion.tokens[0], math.log(max(expansion.probs[0], 1e-9)))
            self.left -= 1


class ThetaGrowth:
    """DuoDecoding's dynamic multi-sequence drafting (arXiv 2503.00784, section 3.3).

    With p1[j] the j-th ranked first-token probability and p2 the best second-token probability on the main sequence,
    theta = p1[0] * p2, and every j with p1[j] > theta starts a sequence of its own: the main sequence's second token
    is less certain than that alternative first token. The budget of gamma tokens is shared by the k sequences; what
    does not divide goes to the likelier ones.
    """

    def __init__(self, stop_tokens: frozenset[int]) -> None:
        self.stop_tokens = stop_tokens
        self.sequences = 1
        self.forked: Node | None = None  # where this phase's sequences begin, once their number is decided

    def begin(self, tree: TokenTree, plan: Plan) -> None:
        chain = tree.chain(1 << 16)
        self.tree = tree
        self.forked = None
        self.anchor = chain[-1] if chain else tree.root
        self.gamma = _gamma(plan)
        self.static = plan.sequences
        # the cap is on the theta rule, not on a number that the user asked for
        self.cap = plan.max_sequences if plan.max_sequences is not None and self.static is None else self.gamma
        self.first: Expansion | None = None
        self.sequences = 1
        self.tips: list[Node] = [self.anchor]  # [anchor], then [main], then one tip per sequence
        self.left: list[int] = [self.gamma]
        if self.anchor.token in self.stop_tokens and self.anchor is not tree.root:
            self.left = [0]

    def wanted(self, width: int) -> list[Node]:
        return [
            tip
            for tip, left in zip(self.tips, self.left, strict=True)
            if left > 0 and (tip.token not in self.stop_tokens or tip is self.tree.root)
        ][:width]

    def expanded(self, node: Node, expansion: Expansion) -> None:
        if node not in self.tips:
            return
        which = self.tips.index(node)
        if not expansion.tokens:
            self.left[which] = 0
            return
        self.tips[which] = self._child(node, expansion, 0)
        self.left[which] -= 1
        if self.first is None:
            self.first = expansion
            if self.static is not None or self.left[0] <= 0:
                self._branch(self.static or 1)
        elif node.parent is self.anchor and len(self.tips) == 1 and self.static is None:
            theta = self.first.probs[0] * expansion.probs[0]
            self._branch(sum(1 for p in self.first.probs if p > theta))

    def _branch(self, sequences: int) -> None:
        assert self.first is not None
        self.forked = self.anchor
        k = self.sequences = max(1, min(sequences, self.cap, self.gamma, len(self.first.tokens)))
        share, extra = divmod(self.gamma, k)
        quota = [share + (j < extra) for j in range(k)]
        drafted = self.gamma - self.left[0]
        self.left[0] = quota[0] - drafted
        for j in range(1, k):
            self.tips.append(self._child(self.anchor, self.first, j))
            self.left.append(quota[j] - 1)

    def _child(self, node: Node, expansion: Expansion, rank: int) -> Node:
        logprob = math.log(max(expansion.probs[rank], 1e-9))
        return self.tree.add(node, expansion.tokens[rank], min(0.0, logprob), rank)


class TreeGrowth:
    """Best-first by calibrated path probability (DESIGN section 5): as deep as gamma, and as many leaves in one forward
    as the plan has sequences; the weights are read once for all of them."""

    sequences = 0
    forked = None
    # Candidates of a leaf that join the tree. In replays of 56 requests with auto 2 to 8 are within 2%, 1 loses 4-5%.
    BRANCHES = 4
    MIN_CHANCE = 0.01  # of a candidate beside the likeliest: a hundred such rows would bring the target one token
    # Paths less likely than this are not worth a draft step: the step would be under way when the verdict comes, and
    # its memory traffic slows a verifier on the next core. In replay 0.05 to 0.2 are alike, 0.02 loses 2-3% on CPUs.
    FLOOR = math.log(0.08)
    MAX_NODES = 160  # a plan without a depth: what one verification can use, many times over

    def __init__(self, stop_tokens: frozenset[int], chances: Chances) -> None:
        self.stop_tokens = stop_tokens
        self.chances = chances

    def begin(self, tree: TokenTree, plan: Plan) -> None:
        self.tree = tree
        self.depth = plan.gamma
        self.width = plan.sequences or plan.max_sequences

    def wanted(self, width: int) -> list[Node]:
        if not self.tree.root.expanded:
            return [self.tree.root]
        if self.tree.size >= self.MAX_NODES:
            return []
        deepest = self.tree.root.position + self.depth if self.depth is not None else float("inf")
        floor = self.FLOOR + self.tree.root.total
        leaves = [
            n
            for n in self.tree.nodes()
            if not n.expanded and n.total > floor and n.position < deepest and n.token not in self.stop_tokens
        ]
        leaves.sort(key=lambda n: -n.total)
        return leaves[: min(width, self.width or width)]

    def expanded(self, node: Node, expansion: Expansion) -> None:
        for rank in range(min(self.BRANCHES, len(expansion.tokens))):
            p = min(0.999, max(1e-9, self.chances.probability(rank, expansion.probs[rank])))
            if rank and p < self.MIN_CHANCE:
                break
            self.tree.add(node, expansion.tokens[rank], math.log(p), rank)


def _gamma(plan: Plan) -> int:
    """Of a chain: it must end somewhere."""
    return plan.gamma if plan.gamma is not None else MAX_CHAIN


def growth_for(method: str, stop_tokens: frozenset[int], chances: Chances) -> Growth:
    match method:
        case Method.SPS | Method.PEARL:
            return ChainGrowth(stop_tokens)
        case Method.DUODECODING | Method.DUODECODING_LOCKSTEP:
            return ThetaGrowth(stop_tokens)
        case Method.TREE | Method.AUTO:
            return TreeGrowth(stop_tokens, chances)
        case _:
            return NoGrowth()
