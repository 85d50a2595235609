"""How long a forward takes by its number of rows: measured at start-up, corrected while running.

The verifier has such a model of its target, a drafter one of its draft model (rows are leaves); the controller is told
both.

The measured curve is that of a single stream's rows. Where several streams share a forward, each has keys and values of
its own to be read, and takes two to three times as long as a row of drafts. So the cost of streams is learnt for each
number of streams, and the cost of a further row from how much longer forwards with more rows took than others with as
many streams. The latter is kept as a fraction of the former, because a busy machine slows both. A row of a prompt takes
longer than a row of drafts, the more so the longer the prompt: :class:`PromptRow`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from statistics import fmean

from actors.estimate import Estimate, Slope

TABULATED = 64  # row counts with a stored time
FACTOR_MEMORY = 10  # forwards: contention and clocks change within some 10 rounds, and a single one says little
MAX_STALL = 3.0  # a single forward (page fault, preempted core) counts as at most this factor of the estimate
# What the calibrated slope counts for, in squared rows (see :class:`actors.estimate.Slope`). Forwards of eight streams
# differ by about five rows, so that ten of them weigh as much. By then, noise of a tenth in their times leaves the
# slope uncertain by a tenth.
SLOPE_PRIOR = 256.0
SLOPE_MEMORY = 64 * SLOPE_PRIOR
MIN_ROW = 1e-3  # least cost of a row, as a fraction of the streams' time
SPREAD = 8  # rows over which the slope of a curve is taken, because forward times climb in steps


class Curve:
    """Piecewise-linear time over row counts, which never falls.

    Where a larger count was measured as faster than a smaller one, both get their mean (isotonic regression), so that
    noise in the calibration cannot make rows look free.
    """

    def __init__(self, measured: Mapping[int, float]) -> None:
        if not measured:
            raise ValueError("a cost model needs at least one measured row count")
        self.rows = sorted(measured)
        levels: list[list[float]] = []  # of neighbouring row counts that share their mean
        for rows in self.rows:
            levels.append([measured[rows]])
            while len(levels) > 1 and fmean(levels[-2]) > fmean(levels[-1]):
                shared = levels.pop()
                levels[-1] += shared
        self.times = [fmean(level) for level in levels for _ in level]
        self._usual = [self._interpolated(rows) for rows in range(TABULATED + 1)]  # looked up some 30 times a round

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
    """Forwards of about the same number of streams, with a row for each and further rows beside them."""

    def __init__(self, factor: float) -> None:
        """``factor``: on the curve's time, while nothing is known."""
        self.factor = Estimate(factor, weight=1, memory=FACTOR_MEMORY)
        self._slope = Slope(SLOPE_PRIOR, SLOPE_MEMORY)  # fractions of the streams' time by further rows
        self.plain = False  # whether a forward without a piece of a prompt was observed

    def observe(self, streams: int, more: float, time_us: float, curve: Curve) -> None:
        """A forward of ``streams`` rows and ``more`` beside them. Rows are only compared between forwards of exactly as
        many streams."""
        self._slope.add(streams, more, time_us, self.factor.mean * curve(streams))
        self.factor.add(_bounded(time_us / (curve(streams) * (1 + more * self.row(streams, curve))), self.factor.mean))

    def row(self, streams: int, curve: Curve) -> float:
        """The cost of a further row, as a fraction of the streams' time."""
        prior = (curve(streams + SPREAD) / curve(streams) - 1) / SPREAD
        return max(MIN_ROW, self._slope.towards(prior))


class CostModel:
    """The calibrated curve times a slowly moving factor for context, contention and clocks. Times are microseconds."""

    def __init__(
        self, measured: Mapping[int, float], branch: float = 0.0, lent: Mapping[int, float] | None = None
    ) -> None:
        """``measured``: times by rows. ``branch``: what each path of a window beside the first adds, as a fraction of a
        forward of one row. ``lent``: times by rows if the CPUs of resting drafters compute as well; None: there are
        none."""
        self.branch = branch
        self.own = Curve(measured)
        self.lent = Curve(lent) if lent else self.own
        self.uses_lent = False  # whether those CPUs compute at present
        self.factor = Estimate(1.0, weight=FACTOR_MEMORY, memory=FACTOR_MEMORY)
        self._shared: dict[int, _Shared] = {}  # by the bit length of the number of streams

    @property
    def lends(self) -> bool:
        """Whether forwards are shorter while drafters rest."""
        return self.lent is not self.own

    @property
    def _curve(self) -> Curve:
        return self.lent if self.uses_lent else self.own

    def curve(self, rows: int) -> float:
        """The calibrated time of a single stream's forward, without the running correction."""
        return self._curve(rows)

    def __call__(self, rows: int) -> float:
        """The time of a single stream's forward."""
        return self.curve(rows) * self.factor.mean

    def round(self, streams: int, drafts: int = 0) -> float:
        """The time of a forward that ``streams`` share, with a row for each and ``drafts`` further rows in all."""
        return self._round(self._curve, streams, drafts)

    def plain(self, streams: int, drafts: int = 0) -> float:
        """As :meth:`round`, while all drafters rest."""
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
        """The running correction of forwards of ``streams``: their time over the curve's."""
        return self._like(streams).factor.mean if streams > 1 else self.factor.mean

    def row(self, streams: int) -> float:
        """The time that a further row of drafts adds to a forward of ``streams``."""
        known = self._like(streams)
        return known.row(streams, self._curve) * known.factor.mean * self._curve(streams)

    def _like(self, streams: int) -> _Shared:
        """Observations of forwards of about that many streams, or of the next smaller number."""
        digits = streams.bit_length()
        fewer = (self._shared[n] for n in range(digits, 0, -1) if n in self._shared)
        return next(fewer, None) or _Shared(self.factor.mean)

    def observe(self, rows: float, time_us: float, streams: int = 1, beside_prompt: bool = False) -> None:
        """A forward of ``rows``, one of them for each stream, took ``time_us``.

        ``beside_prompt``: some rows are of a piece of a prompt, weighted by :class:`PromptRow`. Such a forward is
        learnt from only while no other was :meth:`seen`."""
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
        """Whether a forward of about that many streams, without a prompt's piece, was observed."""
        known = self._shared.get(streams.bit_length())
        return known is not None and known.plain

    def corrected(self, factor: float) -> None:
        """Take over the running correction of the process that measures."""
        self.factor.mean = factor

    def calibration(self) -> tuple[tuple[int, float], ...]:
        """(rows, microseconds) as measured at start-up."""
        return tuple(zip(self.own.rows, self.own.times, strict=True))

    def points(self) -> tuple[tuple[int, float], ...]:
        """(rows, microseconds) as estimated now."""
        return tuple((rows, time * self.factor.mean) for rows, time in self.calibration())


class PromptRow:
    """The cost of a row of a prompt beside a round, over that of a row of drafts. It attends to all of the prompt
    before it."""

    def __init__(self) -> None:
        self._factor = Estimate(1.0, memory=FACTOR_MEMORY)

    @property
    def factor(self) -> float:
        return self._factor.mean

    def observe(self, factor: float) -> None:
        self._factor.add(_bounded(max(MIN_ROW, factor), self.factor))


def _bounded(sample: float, known: float) -> float:
    """``sample``, at most ``MAX_STALL`` times away from what is known."""
    return min(max(sample, known / MAX_STALL), known * MAX_STALL)
