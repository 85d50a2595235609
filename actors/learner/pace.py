"""When the learner may compute: while no request is served, else never at the cost of the verifier's rounds. No clock:
the caller says what time it is.

Rounds while it works are compared with rounds while it rests, on the same machine a few seconds apart. What else slows
rounds (other processes, longer texts) does so in both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean

from actors.cost import CostModel
from protocols.messages import RoundStats

SLOWER = 1.02  # rounds of this ratio to those of its pauses make it pause
COMPARED = 256  # rounds of either kind: the ratio of their means is within 1% then, as ...
SCATTER = 0.1  # ... relative scatter of rounds
FEWEST = 16  # rounds while it works that may show that it disturbs: by 6% then
SILENT_S = 1.0  # without a round for this long no request is served
WORK_S, REST_S = 30.0, 5.0  # at most in a row, so that the pause to compare with is of the same minute
LONGEST_REST_S = 600.0


class Pace:
    """Works while no request is served. Else it pauses first, then works and pauses in turn. Each time that it
    disturbed, the next rest is twice as long."""

    def __init__(self) -> None:
        self._expected = CostModel({1: 1.0})  # microseconds of a forward by its rows, as the verifier measured them
        self._working: deque[float] = deque(maxlen=COMPARED)
        self._resting: deque[float] = deque(maxlen=COMPARED)
        self._alone = True  # when it was last asked
        self._at_work = False  # while a request is served
        self._since = 0.0  # of this turn
        self._last_round = float("-inf")
        self._rest_s = REST_S

    def calibrated(self, forward_us: Sequence[tuple[int, float]]) -> None:
        if forward_us:
            self._expected = CostModel(dict(forward_us))

    def round(self, stats: RoundStats, now: float) -> None:
        """A round ended. Its time without waits, over the expected time of its rows."""
        self._last_round = now
        if not self._alone and stats.wall_us > stats.wait_us:  # else work begun alone may still run
            ratio = (stats.wall_us - stats.wait_us) / (stats.rounds * self._expected(stats.rows))
            (self._working if self._at_work else self._resting).append(ratio)

    @property
    def disturbs(self) -> bool:
        """Whether rounds while it works are slower, as far as chance allows to tell. With few of them, twice the error
        of their mean is allowed for: a target of a second a round is not slowed for minutes to find out."""
        if len(self._working) < FEWEST or len(self._resting) < COMPARED:
            return False
        doubt = 2 * SCATTER * (1 / math.sqrt(len(self._working)) - 1 / math.sqrt(COMPARED))
        return _mean(self._working) > (SLOWER + doubt) * _mean(self._resting)

    def may_work(self, now: float) -> bool:
        """Asked before every piece of work, a second long at most, and again and again while it is to rest."""
        alone, self._alone = self._alone, now - self._last_round > SILENT_S
        if self._alone:
            return True
        turn_s = now - self._since
        if alone:
            self._turn(False, now)
        elif self._at_work and self.disturbs:
            self._working.clear()
            self._rest_s = min(LONGEST_REST_S, 2 * self._rest_s)
            self._turn(False, now)
        elif self._at_work and turn_s >= WORK_S:
            self._rest_s = max(REST_S, self._rest_s / 2)
            self._turn(False, now)
        elif not self._at_work and turn_s >= self._rest_s and len(self._resting) == COMPARED:
            self._turn(True, now)
        return self._at_work

    def _turn(self, at_work: bool, now: float) -> None:
        self._at_work, self._since = at_work, now


def _mean(ratios: Iterable[float]) -> float:
    """Without a tenth on either side: rounds during which something else happened."""
    ordered = sorted(ratios)
    trimmed = len(ordered) // 10
    return fmean(ordered[trimmed : len(ordered) - trimmed])
