"""What a round takes without a drafter: what rounds with one are set against."""

from __future__ import annotations

from actors.cost import CostModel
from actors.estimate import Estimate

MEMORY = 48  # rounds


class PlainRounds:
    """Of one method, as rounds in which no drafter was at work have shown.

    A drafter may slow the forward down that runs beside it, and so may others; while all rest, their CPUs may compute
    for the target; fragments to file, windows to choose and verdicts to send take their time: only rounds without one
    tell who does. Before any was seen, and for what has changed since, the least that a round can take is believed. So
    a drafter that clearly pays never rests for a measurement, and one that may not pay rests for a look, and is judged
    by it.
    """

    def __init__(self) -> None:
        self.slowdown = Estimate(memory=MEMORY)  # forwards over the start-up calibration
        self.overhead = Estimate(memory=MEMORY)  # microseconds of a round beside its forward, for each stream

    @property
    def known(self) -> bool:
        return self.slowdown.known

    def observe(self, cost: CostModel, rows: int, forward_us: float, overhead_us: float, streams: int) -> None:
        self.slowdown.add(forward_us / cost.lent(rows))
        self.overhead.add(min(max(0.0, overhead_us), forward_us) / streams)

    def time(self, cost: CostModel, rows: int, streams: int) -> float:
        """Microseconds of a round of ``streams`` with so many rows in all."""
        if not self.known:
            return max(1.0, cost.plain(streams, rows - streams))
        slowdown = min(self.slowdown.mean, cost.slowdown(streams))
        return max(1.0, cost.lent(rows) * slowdown + streams * self.overhead.mean)
