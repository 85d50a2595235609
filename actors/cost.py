"""The time of a forward by its number of rows: measured at start-up, corrected while running.

The verifier has such a model of its target, a drafter one of its draft model (rows are leaves).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import TypeVar

from actors.estimate import Estimate

V = TypeVar("V")
DRIFT = 0.03  # share of a measured forward
CONTRADICTED = 1.25  # times what rounds take: then the machine was busy when it was measured


class Known(dict[int, V]):
    """Values by numbers, each computed once."""

    def __init__(self, compute: Callable[[int], V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, number: int) -> V:
        value = self[number] = self._compute(number)
        return value


class Curve:
    """Piecewise-linear time over row counts, which never falls.

    If a larger count was measured as faster than a smaller one, both get their mean (isotonic regression). So noise in
    the calibration cannot make rows look free.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        if not measured:
            raise ValueError("a cost model needs at least one measured row count")
        self.rows = sorted(measured)
        levels: list[list[float]] = []  # means of neighbouring row counts that share one
        for rows in self.rows:
            levels.append([measured[rows]])
            while len(levels) > 1 and fmean(levels[-2]) > fmean(levels[-1]):
                shared = levels.pop()
                levels[-1] += shared
        self.times = [fmean(level) for level in levels for _ in level]
        self.by_rows = Known(self._at)  # a round asks for some thirty of them
        self.beyond = Known(lambda rows: Known(lambda more: self(rows + more) - self(rows)))  # time of further rows

    def __call__(self, rows: int) -> float:
        return self.by_rows[rows]

    def _at(self, rows: int) -> float:
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.times[0]
        i = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        r0, r1 = self.rows[i - 1], self.rows[i]
        t0, t1 = self.times[i - 1], self.times[i]
        return t0 + (t1 - t0) * (rows - r0) / (r1 - r0)


UNKNOWN = Curve({1: 1000.0})  # before anything is measured


class CostModel:
    """The calibrated curve times a slowly moving factor for context, contention and clocks. Times are microseconds."""

    def __init__(self, measured: Mapping[int, float], lent: Mapping[int, float] | None = None) -> None:
        """``measured``: times by rows. ``lent``: times by rows if the CPUs of resting drafters compute as well; None:
        there are none."""
        self.own = Curve(measured)
        self.lent = Curve(lent) if lent else self.own
        self.uses_lent = False  # whether those CPUs compute at present
        self.factor = Estimate(1.0, weight=10, memory=10)

    @property
    def lends(self) -> bool:
        """Whether forwards are shorter while drafters rest."""
        return self.lent is not self.own

    @property
    def measured_busy(self) -> bool:
        """Whether rounds are clearly faster than what was measured. Slower ones prove nothing: their texts are longer,
        and others may want the processor."""
        return self.factor.mean < 1 / CONTRADICTED

    @property
    def curve(self) -> Curve:
        """The calibrated times of forwards, without the running correction."""
        return self.lent if self.uses_lent else self.own

    def __call__(self, rows: int) -> float:
        """The time of a forward."""
        return (self.lent if self.uses_lent else self.own).by_rows[rows] * self.factor.mean

    def observe(self, rows: int, time_us: float) -> None:
        """A forward of ``rows`` took ``time_us``."""
        self.factor.add_time(time_us / max(1e-9, self.curve.by_rows[rows]))

    def drift(self, weight: float = DRIFT) -> None:
        """Return slowly to the calibration. What looks too dear is not computed, and so not measured.
        The machine may only have been busy."""
        self.factor.add(1.0, weight)

    def calibration(self) -> tuple[tuple[int, float], ...]:
        """(rows, microseconds) as measured at start-up."""
        return tuple(zip(self.own.rows, self.own.times, strict=True))

    def points(self) -> tuple[tuple[int, float], ...]:
        """(rows, microseconds) as estimated now."""
        return tuple((rows, time * self.factor.mean) for rows, time in self.calibration())
