"""What a chain of drafts costs and brings, in closed form: the start of the draft length, before it is measured."""

from __future__ import annotations

from typing import NamedTuple

from actors.cost import Curve
from actors.models import DEFAULT_NODES
from protocols.messages import Method

TREES = (Method.TREE, Method.AUTO)


class Costs(NamedTuple):
    """Microseconds of one stream's share of a round, and the chance that a draft token is right."""

    forward: Curve  # time by rows
    step: Curve  # time of a draft step by leaves
    slowdown: float  # slowdown of forwards
    beside: float  # forward and draft steps
    message: float  # time to the drafter and back
    streams: int
    chance: float

    def verify(self, rows: int) -> float:
        return self.slowdown * self.forward(self.streams * rows)

    def draft(self, leaves: int) -> float:
        return self.step(self.streams * leaves)

    def expected(self, length: int) -> float:
        """Accepted tokens of a chain."""
        return self.chance * (1 - self.chance**length) / (1 - self.chance)

    def goodput(self, method: str, gamma: int) -> float:
        """Tokens per microsecond of a chain, drafted before the target's forward or during it."""
        if method == Method.SPS:  # two groups of streams: one is drafted for while the other is verified
            groups = min(2, self.streams)
            one = self._replace(streams=-(-self.streams // groups))
            verifying = one.verify(1 + gamma)
            round_us = max(groups * verifying, gamma * one.draft(1) + self.message + verifying)
            return (1 + self.expected(gamma)) / (round_us + self.beside)
        drafting = gamma * self.draft(1)
        again = self.chance / (1 - self.chance**gamma + self.chance)  # share of rounds that verify a drafted chain
        tokens = 1 + again * self.expected(gamma - 1)
        alone, chain = max(self.verify(1), drafting), max(self.verify(gamma), drafting)
        return tokens / ((1 - again) * alone + again * chain + self.beside)

    def gamma(self, method: str) -> int:
        """The best draft length; of a tree the greatest depth that is of use."""
        if method in TREES:
            return min(DEFAULT_NODES, 2 * max(4, round(self.verify(1) / self.draft(1))))
        best, most = 1, 0.0
        draft_us, endless = self.step(1), 1 / (1 - self.chance)  # tokens of an endless chain
        for gamma in range(1, DEFAULT_NODES + 1):
            if endless <= most * gamma * draft_us:
                break  # the drafting of a longer chain alone takes too long
            if (goodput := self.goodput(method, gamma)) > most:
                best, most = gamma, goodput
        return best

    def window(self, rate: float) -> int:
        """The length of a chain of which each token gains more than its row's time costs."""
        alive = 1.0
        for length in range(1, DEFAULT_NODES + 1):
            alive *= self.chance
            row_us = (self.verify(1 + length + 4) - self.verify(1 + length)) / 4  # forward times climb in steps
            if alive < rate * row_us:
                return max(1, length - 1)
        return DEFAULT_NODES
