"""When the learner may compute: while no request is served, else never at the cost of the verifier's rounds. No clock:
the caller says what time it is.

Rounds while it works are compared with rounds while it rests, on the same machine a few seconds apart. What else slows
rounds (other processes, longer texts) does so in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from actors.backoff import Backoff
from actors.cost import UNKNOWN, Curve
from actors.estimate import Estimate
from actors.learner.trial import FEWEST
from protocols.messages import RoundStats

SLOWER = 1.02  # rounds of this ratio to those of its pauses make it pause
COMPARED = 256  # rounds of its pauses: the error of their mean is 0.6%
SILENT_S = 1.0  # without a round for this long no request is served
WORK_S, REST_S = 30.0, 5.0  # longest stretches: work and the pause to compare with share a minute


class Pace:
    """Works while no request is served. Else it pauses first, then works and pauses in turn. Each time that it
    disturbed, the next rest is twice as long."""

    def __init__(self) -> None:
        self._expected = UNKNOWN  # microseconds of a forward by its rows, as the verifier measured them
        self._working, self._resting = (Estimate(memory=COMPARED) for _ in range(2))  # rounds over those
        self._alone = True  # when it was last asked
        self._at_work = False  # while a request is served
        self._until = 0.0  # end of its work
        self._last_round = -math.inf
        self._pause = Backoff(REST_S)

    def calibrated(self, forward_us: Sequence[tuple[int, float]]) -> None:
        if forward_us:
            self._expected = Curve(dict(forward_us))

    def round(self, stats: RoundStats, now: float) -> None:
        """A round ended. Its time without waits, over the expected time of its rows."""
        self._last_round = now
        if not self._alone and stats.wall_us > stats.wait_us:  # else work begun alone may still run
            ratio = (stats.wall_us - stats.wait_us) / (stats.rounds * self._expected(stats.rows))
            (self._working if self._at_work else self._resting).add_time(ratio)

    @property
    def disturbs(self) -> bool:
        """Whether rounds while it works are slower, by more than twice the error of the difference."""
        working, resting = self._working, self._resting
        if working.weight < FEWEST or resting.weight < COMPARED:
            return False
        return working.mean > SLOWER * resting.mean + 2 * math.hypot(working.error, resting.error)

    def may_work(self, now: float) -> bool:
        """Asked before every piece of work, a second long at most, and again and again while it is to rest."""
        alone, self._alone = self._alone, now - self._last_round > SILENT_S
        if self._alone:
            return True
        if alone:
            self._at_work = False
            self._pause.pause(now)
        elif self._at_work and self.disturbs:
            self._at_work = False
            self._working.discount(0.0)
            self._pause.rest(now)
        elif self._at_work and now >= self._until:
            self._at_work = False
            self._pause.succeed()
            self._pause.pause(now)
        elif not self._at_work and not self._pause.resting(now) and self._resting.weight >= COMPARED:
            self._at_work, self._until = True, now + WORK_S
        return self._at_work
