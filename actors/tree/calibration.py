"""From the draft's confidence to the chance that the target agrees, learned online from verdicts.

A draft's probability says how sure *it* is; what ranks a node is how often the target picks that token. The two differ
by model pair, by temperature and by text (DESIGN section 5, point 2: with raw probabilities a best-first tree loses to
a chain). The map is a table over (rank, logit of the probability) with counts that fade, so it follows a change of
text within a few hundred tokens; memory is fixed.
"""

from __future__ import annotations

import math

RANKS = 8
BINS = 12
LOW, HIGH = -6.0, 6.0  # logits of the outermost bins
FADE = 0.995  # of a bin's evidence per observation in it: about 200 observations of memory
PRIOR_STRENGTH = 4.0
BIAS_FADE = 0.98
SUREST = 0.99


def _logit(probability: float) -> float:
    p = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(p / (1 - p))


class Calibration:
    """One map: make one per drafter and temperature regime."""

    def __init__(self) -> None:
        self.hits = [[0.0] * BINS for _ in range(RANKS)]
        self.seen = [[0.0] * BINS for _ in range(RANKS)]

    def _place(self, probability: float) -> tuple[int, float]:
        x = (_logit(probability) - LOW) / (HIGH - LOW) * (BINS - 1)
        x = min(max(x, 0.0), BINS - 1.0)
        low = min(int(x), BINS - 2)
        return low, x - low

    def probability(self, rank: int, probability: float) -> float:
        """Chance that the target picks the candidate of that rank (0: the likeliest) and draft probability."""
        if rank >= RANKS:
            return probability
        low, share = self._place(probability)
        hits, seen = self.hits[rank], self.seen[rank]
        h = hits[low] * (1 - share) + hits[low + 1] * share
        n = seen[low] * (1 - share) + seen[low + 1] * share
        return (h + PRIOR_STRENGTH * probability) / (n + PRIOR_STRENGTH)

    def observe(self, probabilities: tuple[float, ...], hit: int) -> None:
        """One position whose truth is known: the candidates' draft probabilities, best first, and the rank that the
        target picked (-1: none of them)."""
        for rank, probability in enumerate(probabilities[:RANKS]):
            low, share = self._place(probability)
            for place, weight in ((low, 1 - share), (low + 1, share)):
                fade = 1 - (1 - FADE) * weight
                self.seen[rank][place] = self.seen[rank][place] * fade + weight
                self.hits[rank][place] = self.hits[rank][place] * fade + (weight if hit == rank else 0.0)


class AcceptanceBias:
    """How much oftener, or less often, one text follows its drafts than all texts together: a factor on chances."""

    STRENGTH = 6.0  # expected hits before a text's own hits count as much
    MEMORY = 60.0  # expected hits beyond which the oldest fade

    __slots__ = ("expected", "hits")

    def __init__(self) -> None:
        self.hits = self.expected = self.STRENGTH

    @property
    def factor(self) -> float:
        return self.hits / self.expected

    def observe(self, chance: float, hit: bool) -> None:
        """A draft that was believed to be right with that chance was right or not."""
        if self.expected > self.MEMORY:
            self.hits *= BIAS_FADE
            self.expected *= BIAS_FADE
        self.expected += chance
        self.hits += hit


class TextCalibration:
    """The map of a drafter as one text bends it: how often rank 0 is right differs more by text than by confidence."""

    def __init__(self, shared: Calibration) -> None:
        self.shared = shared
        self.bias = AcceptanceBias()

    def probability(self, rank: int, probability: float) -> float:
        """See :meth:`Calibration.probability`."""
        chance = self.shared.probability(rank, probability)
        return min(SUREST, chance * self.bias.factor) if rank == 0 else chance

    def observe(self, probabilities: tuple[float, ...], hit: int) -> None:
        """See :meth:`Calibration.observe`."""
        if probabilities:
            self.bias.observe(self.shared.probability(0, probabilities[0]), hit == 0)
        self.shared.observe(probabilities, hit)
