"""How long a forward takes by its number of rows: measured at start-up, corrected while running."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from statistics import fmean

TABULATED = 64  # rows


class CostModel:
    """Piecewise-linear time over row counts, times one slowly moving factor for context, contention and clocks.

    Times are microseconds. A larger batch is never believed to be cheaper, so that noise in the calibration cannot make
    rows look free: where it was measured so, the counts share their mean (isotonic regression).
    """

    SMOOTHING = 0.1

    def __init__(self, measured: Mapping[int, float]) -> None:
        if not measured:
            raise ValueError("a cost model needs at least one measured row count")
        self.rows = sorted(measured)
        levels: list[list[float]] = []  # of neighbouring row counts that take equally long
        for rows in self.rows:
            levels.append([measured[rows]])
            while len(levels) > 1 and fmean(levels[-2]) > fmean(levels[-1]):
                shared = levels.pop()
                levels[-1] += shared
        self.times = [fmean(level) for level in levels for _ in level]
        self.factor = 1.0
        self._usual = [self._interpolated(rows) for rows in range(TABULATED + 1)]  # asked some thirty times a round

    def curve(self, rows: int) -> float:
        """The calibrated time without the running correction."""
        return self._usual[rows] if rows <= TABULATED else self._interpolated(rows)

    def _interpolated(self, rows: int) -> float:
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.times[0]
        i = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        r0, r1 = self.rows[i - 1], self.rows[i]
        t0, t1 = self.times[i - 1], self.times[i]
        return t0 + (t1 - t0) * (rows - r0) / (r1 - r0)

    def __call__(self, rows: int) -> float:
        return self.curve(rows) * self.factor

    def observe(self, rows: int, time_us: float) -> None:
        ratio = time_us / max(1e-9, self.curve(rows))
        # A single stall (page fault, preempted core) must not move the belief.
        ratio = min(max(ratio, self.factor / 3), self.factor * 3)
        self.factor += self.SMOOTHING * (ratio - self.factor)
