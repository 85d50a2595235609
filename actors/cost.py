"""How long a forward takes by its number of rows: measured at start-up, corrected while running.

The verifier has one of the target, the drafter one of its draft model (rows are leaves); the controller is told both.

The curve is of one stream's rows. Where several streams share a forward, each brings keys and values of its own to be
read, and takes two to three times what a row of drafts does. So what they take is learnt for each number of streams;
and what a further row adds from how much longer forwards with more rows took than others of as many streams. It is
kept as a part of what the streams take: a machine that is busy slows both. A row of somebody's prompt takes more than
one of drafts, the longer the prompt the more: :class:`PromptRow`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from statistics import fmean

from actors.estimate import Estimate, Slope

TABULATED = 64  # rows
FACTOR_MEMORY = 10  # forwards: contention and clocks change within some 10 rounds, a single one says little
MAX_STALL = 3.0  # one forward (page fault, preempted core) moves the belief no further than this factor
# Squared rows that the curve's slope counts for: forwards of eight streams differ by five rows, so that ten weigh as
# much; in as many their times' noise (a tenth) leaves the slope uncertain by a tenth.
SLOPE_PRIOR = 256.0
SLOPE_MEMORY = 64 * SLOPE_PRIOR  # squared rows: forwards that are alike tell nothing new, and nothing is forgotten
MIN_ROW = 1e-3  # of what the streams take: none is for nothing
SPREAD = 8  # rows over which the curve's slope is taken: forward times climb in steps


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


class _Shared:
    """Forwards of about so many streams, a row for each and further rows beside them."""

    def __init__(self, factor: float) -> None:
        """``factor``: on the curve, as long as nothing is known."""
        self.factor = Estimate(factor, weight=1, memory=FACTOR_MEMORY)
        self._slope = Slope(SLOPE_PRIOR, SLOPE_MEMORY)  # of parts of the streams' time, by further rows
        self.plain = False  # whether one that no prompt shared was seen

    def observe(self, streams: int, more: float, time_us: float, curve: Curve) -> None:
        """Only forwards of exactly as many streams are compared."""
        self._slope.add(streams, more, time_us, self.factor.mean * curve(streams))
        self.factor.add(_bounded(time_us / (curve(streams) * (1 + more * self.row(streams, curve))), self.factor.mean))

    def row(self, streams: int, curve: Curve) -> float:
        """A further row, as a part of what the streams take."""
        prior = (curve(streams + SPREAD) / curve(streams) - 1) / SPREAD
        return max(MIN_ROW, self._slope.towards(prior))


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
        self._shared: dict[int, _Shared] = {}  # by the binary digits of the number of streams

    @property
    def lends(self) -> bool:
        """Whether drafters that rest make forwards shorter."""
        return self.lent is not self.own

    @property
    def _curve(self) -> Curve:
        return self.lent if self.uses_lent else self.own

    def curve(self, rows: int) -> float:
        """The calibrated time without the running correction."""
        return self._curve(rows)

    def __call__(self, rows: int) -> float:
        return self.curve(rows) * self.factor.mean

    def round(self, streams: int, drafts: int = 0) -> float:
        """Of a forward that so many streams share, with a row each and so many of drafts in all."""
        return self._round(self._curve, streams, drafts)

    def plain(self, streams: int, drafts: int = 0) -> float:
        """As :meth:`round`, where no drafter needs its CPUs."""
        return self._round(self.lent, streams, drafts)

    def _round(self, curve: Curve, streams: int, drafts: int) -> float:
        if streams <= 1:
            return curve(streams + drafts) * self.factor.mean
        known = self._like(streams)
        return curve(streams) * known.factor.mean * (1 + drafts * known.row(streams, curve))

    def uncorrected(self, streams: int, drafts: int = 0) -> float:
        """As :meth:`plain`, without the running correction."""
        return self.plain(streams, drafts) / self.slowdown(streams)

    def slowdown(self, streams: int) -> float:
        """Of a forward of so many streams without drafts, against the curve."""
        return self._like(streams).factor.mean if streams > 1 else self.factor.mean

    def row(self, streams: int) -> float:
        """What a further row of drafts adds to a forward of so many streams."""
        known = self._like(streams)
        return known.row(streams, self._curve) * known.factor.mean * self._curve(streams)

    def _like(self, streams: int) -> _Shared:
        """Of so many streams, as far as is known."""
        digits = streams.bit_length()
        fewer = (self._shared[n] for n in range(digits, 0, -1) if n in self._shared)
        return next(fewer, None) or _Shared(self.factor.mean)

    def observe(self, rows: float, time_us: float, streams: int = 1, beside_prompt: bool = False) -> None:
        """A forward of so many rows, of which one is each stream's own. ``beside_prompt``: others are of a piece of
        somebody's prompt, counted as what they take; it teaches only as long as the cost is not :meth:`seen` without.
        """
        digits = streams.bit_length()
        if digits not in self._shared:
            self._shared[digits] = _Shared(self._like(streams).factor.mean)
        known = self._shared[digits]
        if beside_prompt and known.plain:
            return
        known.plain = not beside_prompt
        known.observe(streams, max(0.0, rows - streams), time_us, self._curve)
        if streams == 1 and not beside_prompt:
            self.factor.add(_bounded(time_us / max(1e-9, self.curve(round(rows))), self.factor.mean))

    def seen(self, streams: int) -> bool:
        """Whether a forward of about so many streams was, that nobody's prompt shared."""
        known = self._shared.get(streams.bit_length())
        return known is not None and known.plain

    def corrected(self, factor: float) -> None:
        """Another process's running correction: it measures, this one believes."""
        self.factor.mean = factor

    def calibration(self) -> tuple[tuple[int, float], ...]:
        """(rows, microseconds) as they were measured at start-up."""
        return tuple(zip(self.own.rows, self.own.times, strict=True))

    def points(self) -> tuple[tuple[int, float], ...]:
        """(rows, microseconds) as they are believed now."""
        return tuple((rows, time * self.factor.mean) for rows, time in self.calibration())


class PromptRow:
    """What a row of somebody's prompt takes beside a round, over a row of drafts: it looks back to all before it."""

    def __init__(self) -> None:
        self._factor = Estimate(1.0, memory=FACTOR_MEMORY)

    @property
    def factor(self) -> float:
        return self._factor.mean

    def observe(self, factor: float) -> None:
        self._factor.add(_bounded(max(MIN_ROW, factor), self.factor))


def _bounded(sample: float, known: float) -> float:
    return min(max(sample, known / MAX_STALL), known * MAX_STALL)
