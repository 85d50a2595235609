"""When the learner may compute: never at the cost of the verifier's rounds. No clock: the caller says what time it is.

Rounds while it works are compared with rounds while it rests, on the same machine a few seconds apart. What else slows
rounds (other processes, longer texts) does so in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean

from actors.cost import CostModel
from protocols.messages import RoundStats

SLOWER = 1.02  # rounds of this ratio to those of its pauses make it pause
COMPARED = 256  # rounds of either kind: the ratio of their means is within 1% then (rounds scatter by a tenth)
TRIMMED = COMPARED // 10  # on either side, left out of a mean: rounds during which something else happened
SILENT_S = 1.0  # without a round for so long nobody is served, and nobody is disturbed
WORK_S, REST_S = 30.0, 5.0  # at most in a row, so that the rest that it is compared with is of the same minute
LONGEST_REST_S = 600.0
GIVEN_UP_S = 4 * REST_S  # of a rest in which too few rounds came to compare with


class Pace:
    """Works and rests in turn while somebody is served. Each time that it disturbed, the next rest is twice as long."""

    def __init__(self) -> None:
        self._expected = CostModel({1: 1.0})  # microseconds of a forward by its rows, as the verifier measured them
        self._working: deque[float] = deque(maxlen=COMPARED)
        self._resting: deque[float] = deque(maxlen=COMPARED)
        self._at_work = False
        self._since = 0.0  # of this turn
        self._last_round = float("-inf")
        self._rest_s = REST_S

    def calibrated(self, forward_us: Sequence[tuple[int, float]]) -> None:
        if forward_us:
            self._expected = CostModel(dict(forward_us))

    def round(self, stats: RoundStats, now: float) -> None:
        """A round ended. What it took beside waiting, against what its rows should take."""
        self._last_round = now
        if stats.wall_us > stats.wait_us:
            ratio = (stats.wall_us - stats.wait_us) / self._expected(stats.rows)
            (self._working if self._at_work else self._resting).append(ratio)

    @property
    def slowdown(self) -> float:
        """Of rounds while it works; 1.0 as long as it is not known."""
        if len(self._working) < COMPARED or len(self._resting) < COMPARED:
            return 1.0
        return _mean(self._working) / _mean(self._resting)

    def may_work(self, now: float) -> bool:
        """Asked before every piece of work, a second long at most, and again and again while it is to rest."""
        if now - self._last_round > SILENT_S:
            self._turn(True, now)
        elif self._at_work:
            if self.slowdown > SLOWER:
                self._rest_s = min(LONGEST_REST_S, 2 * self._rest_s)
                self._turn(False, now)
            elif now - self._since >= WORK_S:
                self._rest_s = max(REST_S, self._rest_s / 2)
                self._turn(False, now)
        elif now - self._since >= self._rest_s and (len(self._resting) == COMPARED or now - self._since > GIVEN_UP_S):
            self._turn(True, now)
        return self._at_work

    def _turn(self, at_work: bool, now: float) -> None:
        if at_work is self._at_work:
            return
        self._at_work, self._since = at_work, now
        (self._working if at_work else self._resting).clear()


def _mean(ratios: Iterable[float]) -> float:
    return fmean(sorted(ratios)[TRIMMED:-TRIMMED])
