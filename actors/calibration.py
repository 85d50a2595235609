"""The chance that the target agrees, by the draft's confidence: learned online from verdicts.

A draft's probability says how sure the draft is; nodes must be ranked by how often the target picks the token. The two
differ by model pair, temperature and text: ranked by raw probabilities, a best-first tree is slower than a chain. The
map is a table over (rank, logit of the probability). Its counts fade, so it follows a change of text within a few
hundred tokens; its memory is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from actors.estimate import Estimate
from actors.tree.tree import Node

BINS = 12  # bins for each rank
LOW, HIGH = -6.0, 6.0  # logits of the outermost bins
MEMORY = 200  # observations that a bin remembers
PRIOR_STRENGTH = 4.0  # observations that the draft's own probability counts for
LEAST, SUREST = 1e-9, 0.99  # chances: nothing is impossible or certain
IMPOSSIBLE = 1e-6  # a chance that no text makes likely
BRANCHES = 4  # candidates of a leaf that join a tree: 2 to 8 are within 2%, 1 loses 4-5% (docs/experiments/policy.md)
MIN_CHANCE = 0.01  # a chance of candidates after the likeliest: one such row in a hundred would be accepted
USUAL = 0.6  # prior chance that a draft's first choice is right, for drafts that are of use at all
USUAL_STRENGTH, USUAL_MEMORY = 32.0, 2000.0  # tokens that this prior counts for, and that are remembered


class Chances(Protocol):
    """A calibration."""

    def probability(self, rank: int, probability: float) -> float:
        """The chance that the target picks a candidate by its rank (0: the likeliest) and draft probability."""
        ...


def candidates(
    chances: Chances, tokens: Sequence[int], probabilities: Sequence[float], least: float = MIN_CHANCE
) -> list[tuple[int, int, float]]:
    """Rank, token and log chance of each candidate of an expanded leaf that joins the tree. ``least``: chance that
    candidates other than the likeliest need."""
    found = list[tuple[int, int, float]]()
    for rank, (token, probability) in enumerate(zip(tokens[:BRANCHES], probabilities[:BRANCHES], strict=True)):
        chance = chances.probability(rank, probability)
        if not LEAST <= chance <= SUREST:
            chance = LEAST if chance < LEAST else SUREST
        if rank and chance < least:
            break
        found += [(rank, token, math.log(chance))]
    return found


@lru_cache(4096)
def _place(probability: float) -> tuple[int, float]:
    """Between which two bins a probability lies: the index of the lower one, and its distance from that in bins.

    Retrieval has few scores, which it asks for over and over."""
    if probability <= IMPOSSIBLE:
        return 0, 0.0
    if probability >= 1 - IMPOSSIBLE:
        return BINS - 2, 1.0
    x = (math.log(probability / (1 - probability)) - LOW) / (HIGH - LOW) * (BINS - 1)
    if x <= 0.0:
        return 0, 0.0
    if x >= BINS - 1:
        return BINS - 2, 1.0
    low = int(x)
    return low, x - low


class Calibration:
    """One map. Each drafter has one for greedy and one for sampled texts."""

    def __init__(self) -> None:
        # observations of each bin, and the share that was right; the bins of a rank lie side by side
        self.weights, self.means = [0.0] * (BRANCHES * BINS), [0.0] * (BRANCHES * BINS)
        self.agreement = Estimate(USUAL, weight=USUAL_STRENGTH, memory=USUAL_MEMORY)  # how often rank 0 is right

    def probability(self, rank: int, probability: float) -> float:
        """See :class:`Chances`."""
        low, share = _place(probability)
        at, weights, means = rank * BINS + low, self.weights, self.means
        weight, more = weights[at] * (1 - share), weights[at + 1] * share
        hits = weight * means[at] + more * means[at + 1]
        return (hits + PRIOR_STRENGTH * probability) / (weight + more + PRIOR_STRENGTH)

    def observe(self, probabilities: tuple[float, ...], hit: int) -> None:
        """Learn from a position that the target has decided. ``probabilities``: the draft's, of its candidates, best
        first. ``hit``: the rank of the target's choice (-1: none of them)."""
        self.agreement.add(float(hit == 0))
        for rank, probability in enumerate(probabilities[:BRANCHES]):
            self.decided(rank, probability, hit == rank)

    def decided(self, rank: int, probability: float, right: bool) -> None:
        """Learn whether the target picked one candidate."""
        low, share = _place(probability)
        low += rank * BINS
        for at, weight in ((low, 1 - share), (low + 1, share)):
            if weight > 0.0:
                known = self.weights[at] + weight
                self.weights[at] = known = known if known < MEMORY else MEMORY
                self.means[at] += weight / known * (right - self.means[at])


class TextBias:
    """The bias of one text towards its drafts: a shift of the log odds of all chances.

    It is fitted online, a Newton step for each token. A factor on chances instead believed texts at temperature 1 that
    copied a few short matches to copy long ones almost surely: where a window was worth it, 1.5 times as many tokens
    were expected as came (docs/experiments/policy.md).
    """

    # In units of the information that a token gives: chance * (1 - chance), at most 1/4. With memories of 5 to 20, the
    # log loss of the bundled draft's first choices in 465 greedy answers was 0.460 to 0.467 (as a factor 0.476, without
    # any 0.490), that of retrieved tokens 0.386 (0.396), and at temperature 1 0.506 (0.510).
    PRIOR, MEMORY = 5.0, 8.0

    def __init__(self) -> None:
        self.shift, self.factor = 0.0, 1.0  # added to log odds; multiplies odds
        self._weight = self.PRIOR

    def chance(self, chance: float) -> float:
        """The chance in this text of what has that ``chance`` in all texts together."""
        if not IMPOSSIBLE <= chance <= SUREST:
            chance = IMPOSSIBLE if chance < IMPOSSIBLE else SUREST
        odds = self.factor * chance / (1.0 - chance)
        return odds / (1.0 + odds)

    def observe(self, chance: float, right: bool) -> None:
        """Learn whether something with that ``chance`` in all texts together was right in this one."""
        chance = self.chance(chance)
        weight = self._weight + chance * (1.0 - chance)
        self._weight = weight if weight < self.MEMORY else self.MEMORY
        self.shift += (right - chance) / self._weight
        self.factor = math.exp(self.shift)


class TextCalibration:
    """A drafter's map with a shift for one text: how often rank 0 is right differs more by text than by confidence."""

    def __init__(self, shared: Calibration) -> None:
        self.shared = shared
        self.bias = TextBias()

    @property
    def agreement(self) -> float:
        """The share of this text's tokens that are the draft's first choice."""
        return self.bias.chance(self.shared.agreement.mean)

    def probability(self, rank: int, probability: float) -> float:
        """See :class:`Chances`."""
        chance = self.shared.probability(rank, probability)
        return self.bias.chance(chance) if rank == 0 else chance

    def observe(self, probabilities: tuple[float, ...], hit: int) -> None:
        """See :meth:`Calibration.observe`."""
        if probabilities:
            self.bias.observe(self.shared.probability(0, probabilities[0]), hit == 0)
        self.shared.observe(probabilities, hit)

    def learn(self, root: Node, tokens: Sequence[int]) -> list[int]:
        """Learn from the target's choice after each expanded node of the committed path, which begins at ``root``.
        Returns the rank of each choice among the candidates, from 1; 0: it is no candidate."""
        ranks = list[int]()
        node: Node | None = root
        for token in tokens:
            if node is None:
                break
            if (known := node.expansion) is not None and known.tokens:
                hit = known.tokens.index(token) if token in known.tokens else -1
                self.observe(known.probs, hit)
                ranks.append(hit + 1)
            node = node.child(token)
        return ranks
