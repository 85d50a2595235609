"""What policy leaves and what only drafts can give: the fastest that a text could have come.

An oracle knows the text and drafts in time: every round verifies just the tokens that will be accepted, nothing is
waited for, and no row is in vain. With the drafts that there are it stops where none of a draft's first candidates is
the target's token; with perfect drafts, nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.tree.window import Cost

CANDIDATES = 4  # that join the tree, as in actors.drafter.growth.TreeGrowth


def drafted_limit(ranks: Sequence[int], cost: Cost, overhead_us: float, longest: int) -> float:
    """Microseconds for a text behind its first token, with the oracle's choice among the draft's candidates.

    ``ranks``: of the text's tokens, from 1; 0: no candidate. ``longest``: draft tokens of a window at most."""
    return _limit([0 < rank <= CANDIDATES for rank in ranks], cost, overhead_us, longest)


def perfect_limit(tokens: int, cost: Cost, overhead_us: float, longest: int) -> float:
    """The same of a text of so many tokens with perfect drafts."""
    return _limit([True] * tokens, cost, overhead_us, longest)


def _limit(right: Sequence[bool], cost: Cost, overhead_us: float, longest: int) -> float:
    """The cheapest way to cut the text into rounds: one of L drafts commits L + 1 tokens."""
    best = [0.0] + [float("inf")] * (len(right) - 1)  # best[i]: the first i tokens behind the first
    for start in range(len(right) - 1):
        for length in range(min(longest, len(right) - 2 - start) + 1):
            end = start + length + 1
            best[end] = min(best[end], best[start] + cost(1 + length) + overhead_us)
            if not right[1 + start + length]:
                break
    return best[-1]
