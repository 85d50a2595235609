"""How long a forward takes by its number of rows: measured at start-up, corrected while running.

The verifier has one of the target, the drafter one of its draft model (rows are leaves); the controller is told both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from statistics import fmean

from actors.estimate import Estimate

TABULATED = 64  # rows
FACTOR_MEMORY = 10  # forwards: contention and clocks change within some 10 rounds, a single one says little
MAX_STALL = 3.0  # one forward (page fault, preempted core) moves the belief no further than this factor


class Curve:
    """Piecewise-linear time over row counts.

    A larger batch is never believed to be cheaper, so that noise in the calibration cannot make rows look free: where
    it was measured so, the counts share their mean (isotonic regression).
    """

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
        self._usual = [self._interpolated(rows) for rows in range(TABULATED + 1)]  # asked some thirty times a round

    def __call__(self, rows: int) -> float:
        return self._usual[rows] if rows <= TABULATED else self._interpolated(rows)

    def _interpolated(self, rows: int) -> float:
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.times[0]
        i = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        r0, r1 = self.rows[i - 1], self.rows[i]
        t0, t1 = self.times[i - 1], self.times[i]
        return t0 + (t1 - t0) * (rows - r0) / (r1 - r0)


class CostModel:
    """A curve as it was calibrated, times one slowly moving factor for context, contention and clocks. Times are
    microseconds."""

    def __init__(
        self, measured: Mapping[int, float], branch: float = 0.0, lent: Mapping[int, float] | None = None
    ) -> None:
        """``branch``: what each path of a window beside the first adds, as a part of a forward of one row. ``lent``:
        the times with the CPUs that resting drafters leave."""
        self.branch = branch
        self.own = Curve(measured)
        self.lent = Curve(lent) if lent else self.own
        self.uses_lent = False  # now
        self.factor = Estimate(1.0, weight=FACTOR_MEMORY, memory=FACTOR_MEMORY)

    @property
    def lends(self) -> bool:
        """Whether drafters that rest make forwards shorter."""
        return self.lent is not self.own

    def curve(self, rows: int) -> float:
        """The calibrated time without the running correction."""
        return (self.lent if self.uses_lent else self.own)(rows)

    def __call__(self, rows: int) -> float:
        return self.curve(rows) * self.factor.mean

    def plain(self, rows: int) -> float:
        """Of decoding without drafts: no drafter needs its CPUs then."""
        return self.lent(rows) * self.factor.mean

    def observe(self, rows: int, time_us: float) -> None:
        ratio, known = time_us / max(1e-9, self.curve(rows)), self.factor.mean
        self.factor.add(min(max(ratio, known / MAX_STALL), known * MAX_STALL))

    def corrected(self, factor: float) -> None:
        """Another process's running correction: it measures, this one believes."""
        self.factor.mean = factor

    def calibration(self) -> tuple[tuple[int, float], ...]:
        """(rows, microseconds) as they were measured at start-up."""
        return tuple(zip(self.own.rows, self.own.times, strict=True))

    def points(self) -> tuple[tuple[int, float], ...]:
        """(rows, microseconds) as they are believed now."""
        return tuple((rows, time * self.factor.mean) for rows, time in self.calibration())
