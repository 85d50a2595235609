"""What a row of drafts adds to a round that several streams share: in the forward, and beside it.

The calibration's curve is of one stream's rows. With several, the factor on it takes in what their texts add whatever
is drafted, and no forward shows what proposals, trees and verdicts take. So the slope is learnt from whole rounds: how
much longer those with more drafts took than others of as many streams.
"""

from __future__ import annotations

from actors.cost import CostModel
from actors.estimate import Estimate

MEMORY = 64  # rounds
# Squared rows that the curve's slope counts for: rounds of eight streams differ by five rows, so that ten rounds weigh
# as much; in as many their times' noise (a tenth) leaves the slope uncertain by a tenth.
PRIOR = 256.0
SPREAD = 8  # rows over which the curve's slope is taken: forward times climb in steps
MAX_STALL = 3.0  # of the usual time: what is longer was no row's doing


class _Rounds:
    """Of about so many streams. Only rounds of exactly as many are compared."""

    def __init__(self) -> None:
        self.usual: dict[int, tuple[Estimate, Estimate]] = {}  # by streams: rows of drafts, microseconds
        self.together = self.squares = 0.0  # of deviations: rows times microseconds, rows times rows

    def observe(self, streams: int, drafts: int, time_us: float) -> None:
        rows, times = self.usual.setdefault(streams, (Estimate(memory=MEMORY), Estimate(memory=MEMORY)))
        if times.known:
            time_us = min(time_us, MAX_STALL * times.mean)
            more, longer = drafts - rows.mean, time_us - times.mean
            keep = 1.0 - 1.0 / MEMORY
            self.together = keep * self.together + more * longer
            self.squares = keep * self.squares + more * more
        rows.add(drafts)
        times.add(time_us)

    def slope(self, prior: float) -> float:
        return max(0.0, (self.together + PRIOR * prior) / (self.squares + PRIOR))


class RowTimes:
    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self._known: dict[int, _Rounds] = {}  # by the binary digits of the number of streams

    def of(self, streams: int) -> float:
        """Microseconds that one more row of drafts adds to a round of so many streams."""
        prior = (self.cost(streams + SPREAD) - self.cost(streams)) / SPREAD
        known = self._known.get(streams.bit_length())
        return prior if known is None else known.slope(prior)

    def observe(self, streams: int, drafts: int, time_us: float) -> None:
        """A round without a prompt, with all that the verifier did for it but drafting with a model."""
        self._known.setdefault(streams.bit_length(), _Rounds()).observe(streams, drafts, time_us)
