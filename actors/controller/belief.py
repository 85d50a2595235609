"""What the controller believes of one method with one drafter, from the statistics of its rounds."""

from __future__ import annotations

from actors.controller.goodput import PRIOR_RANKS, PRIOR_THETA, Belief
from actors.cost import CostModel
from actors.estimate import Estimate
from protocols.messages import RoundStats

RANKS = 8  # choices of a draft that are told apart
DEPTHS = 16  # of a chain, likewise; below, a chain is as right as at the last
MEMORY = 48  # rounds: a change of text is believed within some 50, and a mean of 48 is within 10% of a chance of 0.7
SHRINK = 12.0  # rounds' worth of trust in all depths together where one depth is in question
PRIOR = 3  # rounds that what is believed before any counts for


class Observed:
    """Round by round; ``belief`` gives what :func:`actors.controller.goodput.goodput` asks for."""

    def __init__(self) -> None:
        self.ranks = [Estimate(p, weight=PRIOR, memory=2 * MEMORY) for p in _padded(PRIOR_RANKS)]
        self.depths = [Estimate(PRIOR_RANKS[0], memory=MEMORY) for _ in range(DEPTHS)]
        self.theta = [Estimate(p, weight=PRIOR, memory=MEMORY) for p in _padded(PRIOR_THETA)]
        self.overhead = Estimate(memory=MEMORY)
        self.tokens = Estimate(memory=MEMORY)  # of one stream in one round
        self.wall = Estimate(memory=MEMORY)
        self.streams = Estimate(memory=8)  # that share a forward: known exactly, a mean only while they come and go
        self.message_us = 0.0

    def observe(self, stats: RoundStats, most_sequences: int) -> None:
        """``most_sequences``: the cap in force; more than that the theta rule cannot be seen to want."""
        self.tokens.add(stats.committed)
        self.wall.add(max(1.0, stats.wall_us))
        self.overhead.add(min(max(0.0, stats.wall_us - stats.forward_us - stats.wait_us), stats.forward_us))
        self.streams.add(stats.streams)
        self.message_us = stats.message_us
        for seen in stats.draft_ranks:
            for rank, estimate in enumerate(self.ranks, 1):
                estimate.add(1.0 if seen == rank else 0.0)
        for depth in range(min(stats.accepted, DEPTHS)):
            self.depths[depth].add(1.0)
        if stats.accepted < min(stats.window, DEPTHS):
            self.depths[stats.accepted].add(0.0)
        if stats.sequences > 0:
            for wanted, estimate in enumerate(self.theta[:most_sequences], 1):
                estimate.add(1.0 if stats.sequences >= wanted else 0.0)

    @property
    def rate(self) -> float:
        """Tokens per microsecond of one stream; 0: not known."""
        return self.tokens.mean / self.wall.mean if self.wall.known else 0.0

    def belief(self, cost: CostModel, step: CostModel) -> Belief:
        pooled = self.ranks[0].mean
        return Belief(
            cost,
            step,
            [estimate.mean for estimate in self.ranks],
            [*(depth.towards(pooled, SHRINK) for depth in self.depths), pooled],
            [estimate.mean for estimate in self.theta],
            self.overhead.mean,
            self.message_us,
            max(1.0, self.streams.mean),
            self.rate,
        )


def _padded(prior: tuple[float, ...]) -> list[float]:
    """A chance for every rank; those beyond the prior halve."""
    return [prior[i] if i < len(prior) else prior[-1] * 0.5 ** (i - len(prior) + 1) for i in range(RANKS)]
