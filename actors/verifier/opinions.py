"""One chance out of two: of a token that was retrieved, where a draft model has spoken as well.

Retrieval knows how long the match is, and the draft model what the text says. Their log odds are added up with weights
that are learned from verdicts (a logarithmic opinion pool, Genest and Zidek 1986): a draft model that names the same
token makes it likelier than either says, and one that names others only makes it less likely. Of 52,000 tokens that the
bundled target's own texts proposed behind right ones, 0.94 were right where the bundled draft's first choice was the
same, and 0.53 where it was another.

What the draft model names beside them shares what is left: its chance is that of the retrieved token's being wrong,
times the draft model's for it among the others. Where they disagreed about a long copy, of which 0.89 were right, the
draft's choice had been believed with 0.48, and was right 0.07 times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from actors.calibration import SUREST, log_odds
from actors.tree.tree import BY_DRAFT, BY_RETRIEVAL, FORCED, Node, TokenTree

RATE = 0.01  # of learning: begun with equal weights, a regression on those tokens was as good after a few hundred
LEAST = 1e-3  # chance that is left for tokens that were not retrieved


class OpinionPool:
    """The weights for greedy or for sampled texts. They begin with those of a regression on the tokens above."""

    def __init__(self) -> None:
        self.bias, self.unnamed = 1.2, -2.0  # of all, and of tokens that the draft model did not name
        self.retrieved, self.drafted = 0.8, 0.5  # of the log odds

    def chance(self, retrieved: float, drafted: float | None) -> float:
        """Of a token with these chances. ``drafted``: None: the draft model named others only."""
        odds = self.bias + self.retrieved * log_odds(retrieved)
        odds += self.unnamed if drafted is None else self.drafted * log_odds(drafted)
        return min(SUREST, 1.0 / (1.0 + math.exp(-odds)))

    def observe(self, retrieved: float, drafted: float | None, right: bool) -> None:
        """The target has decided on that token: a gradient step of logistic regression."""
        step = RATE * (right - self.chance(retrieved, drafted))
        self.bias += step
        self.retrieved += step * log_odds(retrieved)
        if drafted is None:
            self.unnamed += step
        else:
            self.drafted += step * log_odds(drafted)

    def weigh(self, node: Node) -> None:
        """Weigh the children of ``node``, if both have named some since they were weighed last: those that were
        retrieved against the others. The tree is to be settled then (:meth:`TokenTree.settle`)."""
        if not node.stale:
            return
        node.stale = False
        retrieved, others = list[tuple[Node, float]](), list[tuple[Node, float]]()
        for child in node.children.values():
            if child.rank == FORCED:
                return
            if child.retrieved is not None:
                retrieved.append((child, child.retrieved))
            elif child.drafted is not None:
                others.append((child, child.drafted))
        left, unnamed = 1.0, 1.0  # of what was retrieved: that it is wrong, and that as the draft model has it
        for child, logprob in retrieved:
            drafted = _chance(child.drafted)
            chance = self.chance(math.exp(logprob), drafted)
            child.logprob = math.log(chance)
            left, unnamed = left - chance, unnamed - (drafted or 0.0)
        factor = math.log(max(LEAST, left) / max(LEAST, unnamed))
        for child, logprob in others:
            child.logprob = min(0.0, logprob + factor)

    def settle(self, tree: TokenTree) -> None:
        """Weigh what was named since the last call, and settle the tree."""
        if stale := [node for node in tree.root.subtree() if node.stale]:
            for node in stale:
                self.weigh(node)
            tree.settle(tree.root)

    def learn(self, root: Node, tokens: Sequence[int]) -> None:
        """``tokens`` were committed behind ``root``."""
        node: Node | None = root
        for token in tokens:
            if node is None:
                return
            if node.named == BY_DRAFT | BY_RETRIEVAL:
                for child in node.children.values():
                    if child.retrieved is not None:
                        self.observe(math.exp(child.retrieved), _chance(child.drafted), child.token == token)
            node = node.children.get(token)


def _chance(logprob: float | None) -> float | None:
    return None if logprob is None else math.exp(logprob)
