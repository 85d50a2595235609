"""Additions of later block drafters to DFlash: scores of pairs of tokens, and convolutions along a block.

DSpark has a bias for each pair of tokens (arXiv 2607.05147), DFlash2 a score of the likeliest pairs, and convolutions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actors.engines.engine import PerRow, Trunk
from actors.engines.heads.head import PairScores
from actors.engines.heads.layer import Weights


class Markov:
    """DSpark's: what a token adds to the logits of the next does not depend on the text."""

    def __init__(self, weights: Weights, trunk: Trunk) -> None:
        self._first = weights["markov_head.markov_w1.weight"].to(trunk.device, trunk.dtype)
        self._second = trunk.linear(weights["markov_head.markov_w2.weight"])

    def __call__(self, logits: Tensor, x: Tensor, before: Tensor) -> Tensor:
        return logits + self._second(self._first[before]).float()


class Selector:
    """DFlash2's: a few candidates at each place, scored by their predecessor; nothing else is drafted."""

    def __init__(self, weights: Weights, trunk: Trunk, candidates: int) -> None:
        names = ("predecessor", "successor")
        books = (weights[f"candidate_selector.{name}_codebook"].to(trunk.device, trunk.dtype) for name in names)
        self._predecessors, self._successors = books
        self._gate = trunk.linear(weights["candidate_selector.hidden_projection.weight"])
        self._candidates = candidates

    def __call__(self, logits: Tensor, x: Tensor, before: Tensor) -> Tensor:
        best, ids = logits.topk(self._candidates)
        wanted = (self._predecessors[before] * self._gate(x)).float()
        scores = best + (self._successors[ids].float() @ wanted[:, :, None])[:, :, 0]
        return torch.full_like(logits, -torch.inf).scatter_(1, ids, scores)


def pairs_in(weights: Weights, trunk: Trunk, candidates: int) -> PairScores | None:
    """``candidates``: of a selector, by the configuration."""
    if "markov_head.markov_w1.weight" in weights:
        return Markov(weights, trunk)
    if "candidate_selector.predecessor_codebook" in weights:
        return Selector(weights, trunk, candidates)
    return None


class Convolution:
    """Along the rows of a block, before and after a part of a layer; its weights depend on the row in groups."""

    def __init__(self, base: Tensor, projection: Tensor, trunk: Trunk) -> None:
        """``base`` ``(2, taps, hidden)``: before and after. ``projection`` ``(2 * taps * groups, hidden)``."""
        self._base = base.to(trunk.device, trunk.dtype)
        self._projection: PerRow = trunk.linear(projection)

    def weights(self, x: Tensor) -> Tensor:
        """``(rows, 2, taps, hidden)``, by what goes into the part."""
        groups = self._projection(x).view(len(x), *self._base.shape[:2], -1)
        return self._base + groups.repeat_interleave(self._base.shape[2] // groups.shape[3], -1)

    @staticmethod
    def apply(x: Tensor, weights: Tensor, places: Tensor) -> Tensor:
        """``weights``: of one side. ``places`` ``(rows,)``: of each row in its block."""
        found = x * weights[:, 0]
        for tap in range(1, weights.shape[1]):
            earlier = torch.nn.functional.pad(x, (0, 0, tap, 0))[: len(x)]
            found = found + torch.where((places >= tap)[:, None], earlier, 0.0) * weights[:, tap]
        return found


def convolution_in(weights: Weights, name: str, trunk: Trunk) -> Convolution | None:
    if f"{name}.base_kernel" not in weights:
        return None
    return Convolution(weights[f"{name}.base_kernel"], weights[f"{name}.kernel_projection.weight"], trunk)
