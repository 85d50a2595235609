"""Growth of a drafter's tree, by method: which leaves to expand next, and which of their candidates to keep.

A growth works in *phases*. A phase begins when the lease opens and after every verdict; it ends when its budget of
draft tokens is used up. ``wanted`` names leaves for the next batched forward, ``expanded`` takes their candidates.
"""

from __future__ import annotations

import math

from actors.calibration import LEAST, Chances, candidates
from actors.models import DEFAULT_NODES, Expansion
from actors.tree.tree import Node, TokenTree
from protocols.limits import MAX_NODES
from protocols.messages import Method, Plan


class Growth:
    """Growth without drafts: vanilla, and the base of all others."""

    sequences = 0  # k of this phase; 0: the method has no sequences

    def begin(self, tree: TokenTree, plan: Plan) -> None:
        """Begin a phase at what is left of the tree."""

    def wanted(self, width: int) -> list[Node]:
        """Leaves for the next forward, at most ``width``; empty when the phase is over."""
        return []

    def expanded(self, node: Node, expansion: Expansion) -> None:
        """Take the candidates of a leaf that ``wanted`` has named, or of the root."""


class ChainGrowth(Growth):
    """One chain of gamma tokens: SpS (arXiv 2302.01318) and PEARL (arXiv 2408.11850). PEARL's is drafted behind the
    chain that has survived; SpS takes turns with the verifier, so its chain has gamma tokens in all."""

    sequences = 1

    def __init__(self, stop_tokens: frozenset[int]) -> None:
        self.stop_tokens = stop_tokens
        self.tip: Node | None = None
        self.left = 0

    def begin(self, tree: TokenTree, plan: Plan) -> None:
        self.tree = tree
        chain = tree.chain()
        self.tip = chain[-1] if chain else tree.root
        self.left = _gamma(plan) - (len(chain) if plan.method == Method.SPS else 0)

    def wanted(self, width: int) -> list[Node]:
        if self.left <= 0 or self.tip is None or self.tip.token in self.stop_tokens:
            return []
        return [self.tip]

    def expanded(self, node: Node, expansion: Expansion) -> None:
        if node is self.tip and not expansion.tokens:
            self.left = 0  # a proposer may have no candidates
        elif node is self.tip:
            self.tip = _drafted(self.tree, node, expansion, 0)
            self.left -= 1


class ThetaGrowth(Growth):
    """DuoDecoding's dynamic multi-sequence drafting (arXiv 2503.00784, section 3.3).

    Let p1[j] be the probability of the first token of rank j, and p2 that of the best second token after the likeliest
    first. Then theta = p1[0] * p2 is the probability of the main sequence's first two tokens. Every j with p1[j] >
    theta starts another sequence: its first token is likelier than the pair. The k sequences share the budget of gamma
    tokens; a remainder goes to the likelier ones.
    """

    def __init__(self, stop_tokens: frozenset[int]) -> None:
        self.stop_tokens = stop_tokens
        self.sequences = 1

    def begin(self, tree: TokenTree, plan: Plan) -> None:
        chain = tree.chain()
        self.tree = tree
        self.anchor = chain[-1] if chain else tree.root  # the sequences begin below it
        self.gamma = _gamma(plan)
        self.static = plan.sequences  # k as the user asked; None: by the theta rule
        # the cap is on the theta rule, not on a number that the user asked for
        self.cap = plan.max_sequences if plan.max_sequences is not None and self.static is None else self.gamma
        self.first: Expansion | None = None  # the candidates after the anchor
        self.sequences = 1
        self.tips: list[Node] = [self.anchor]  # the anchor, then the main sequence's tip, then one of each sequence
        self.left: list[int] = [self.gamma]  # tokens still to be drafted after each tip
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
        self.tips[which] = _drafted(self.tree, node, expansion, 0)
        self.left[which] -= 1
        if self.first is None:
            self.first = expansion
            if self.static is not None or self.left[0] <= 0:
                self._branch(self.static or 1)
        elif node.parent is self.anchor and len(self.tips) == 1 and self.static is None:
            theta = self.first.probs[0] * expansion.probs[0]
            self._branch(sum(1 for p in self.first.probs if p > theta))

    def _branch(self, sequences: int) -> None:
        """k is decided: start the other sequences, and share what is left of gamma."""
        assert self.first is not None
        k = self.sequences = max(1, min(sequences, self.cap, self.gamma, len(self.first.tokens)))
        share, extra = divmod(self.gamma, k)
        quota = [share + (j < extra) for j in range(k)]
        drafted = self.gamma - self.left[0]
        self.left[0] = quota[0] - drafted
        for j in range(1, k):
            self.tips.append(_drafted(self.tree, self.anchor, self.first, j))
            self.left.append(quota[j] - 1)


class TreeGrowth(Growth):
    """A tree that grows best-first, by the calibrated probability of the path to a node.

    It is at most gamma tokens deep. One forward expands as many leaves as the plan has sequences, and reads the weights
    once for all. Raw probabilities instead of calibrated ones make it too wide: such a tree loses to a chain
    (:mod:`actors.calibration`)."""

    # Log probability of a path below which a draft step is not worth making: it would be under way when the verdict
    # comes, and its memory traffic slows a verifier on the next core. In replays 0.05 to 0.2 are alike; 0.02 loses 2-3%
    # on CPUs.
    FLOOR = math.log(0.08)

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
        if self.tree.size >= MAX_NODES // 2:  # a message holds them all, and those of the step under way
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
        for rank, token, logprob in candidates(self.chances, expansion.tokens, expansion.probs):
            self.tree.add(node, token, logprob, rank)


def _gamma(plan: Plan) -> int:
    """Draft tokens of a phase, which must end where the plan leaves that open, too."""
    return plan.gamma if plan.gamma is not None else DEFAULT_NODES


def _drafted(tree: TokenTree, node: Node, expansion: Expansion, rank: int) -> Node:
    """The candidate of that rank after ``node``, in the tree with its raw probability."""
    logprob = math.log(max(expansion.probs[rank], LEAST))
    return tree.add(node, expansion.tokens[rank], min(0.0, logprob), rank)


def growth_for(method: str, stop_tokens: frozenset[int], chances: Chances) -> Growth:
    """The growth of a method. Nothing is drafted after ``stop_tokens``."""
    match method:
        case Method.SPS | Method.PEARL:
            return ChainGrowth(stop_tokens)
        case Method.DUODECODING | Method.DUODECODING_LOCKSTEP:
            return ThetaGrowth(stop_tokens)
        case Method.TREE | Method.AUTO:
            return TreeGrowth(stop_tokens, chances)
        case _:
            return Growth()
