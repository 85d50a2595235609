"""What the controller measures about rounds, whatever method made them. Times are microseconds."""

from __future__ import annotations

import math
from collections.abc import Callable

from actors.verifier.waiting import Average
from protocols.messages import RoundStats

ODD_ROUNDS = 3
RECENT = 48  # rounds over which rates are averaged


class LineCost:
    """Forward time as ``base + rows * slope``, fitted to what rounds took lately.

    Old rounds fade, so that a target that changes its pace is believed within some 20 rounds. Where the rows have not
    varied for a while, the slope keeps its share of the whole.
    """

    FADE = 0.95
    TRUST = 2.0  # rows² of spread that the remembered slope counts for

    def __init__(self) -> None:
        self.weight = self.rows = self.time = self.rows2 = self.both = 0.0
        self.odd = 0  # rounds in a row that were nothing like the line
        self.share = 0.02  # of a forward's mean time that one row costs

    def observe(self, rows: int, time_us: float) -> None:
        if self.weight >= 1:
            ratio = time_us / max(1e-6, self(rows))
            self.odd = 0 if 0.6 < ratio < 1.7 else self.odd + 1
            if self.odd >= ODD_ROUNDS:  # another pace altogether: the whole line moves, its shape stays
                self.time, self.both, self.odd = self.time * ratio, self.both * ratio, 0
            elif self.odd:
                return  # a single stall must not move the belief
        fade = self.FADE
        self.weight = self.weight * fade + 1
        self.rows = self.rows * fade + rows
        self.time = self.time * fade + time_us
        self.rows2 = self.rows2 * fade + rows * rows
        self.both = self.both * fade + rows * time_us
        mean, slope = self._mean_and_slope()
        self.share += 0.05 * (slope / max(mean, 1e-6) - self.share)

    def _mean_and_slope(self) -> tuple[float, float]:
        mean_r, mean_t = self.rows / self.weight, self.time / self.weight
        spread = max(0.0, self.rows2 - self.weight * mean_r * mean_r)
        joint = self.both - self.weight * mean_r * mean_t
        slope = (joint + self.TRUST * self.share * mean_t) / (spread + self.TRUST)
        return mean_t, min(max(0.0, slope), mean_t / max(1.0, mean_r))

    def line(self) -> tuple[float, float]:
        """(base, slope)."""
        if self.weight == 0:
            return 1000.0, 20.0
        mean, slope = self._mean_and_slope()
        return max(1.0, mean - slope * self.rows / self.weight), slope

    def __call__(self, rows: float) -> float:
        base, slope = self.line()
        return base + slope * rows


class Evidence:
    """The mean of a noisy quantity, and how far it can be trusted."""

    def __init__(self, most: int) -> None:
        """``most``: samples beyond which old ones fade."""
        self.most = most
        self.count = self.mean = self.variance = 0.0

    def add(self, sample: float) -> None:
        self.count = min(self.count + 1, self.most)
        off = sample - self.mean
        self.mean += off / self.count
        self.variance += (off * (sample - self.mean) - self.variance) / self.count

    def forget(self) -> None:
        self.count = 0.0

    def surely_negative(self, least: int) -> bool:
        """Whether the mean is below zero by two standard errors, from ``least`` samples on."""
        return self.count >= least and self.mean + 2 * math.sqrt(self.variance / self.count) < 0


class Pace:
    """How rounds of one method go: tokens, time, and where the time goes."""

    def __init__(self, recent: int = RECENT) -> None:
        self.rounds = 0
        self.tokens = Average(1.0, most=recent, weight=0.0)  # of one stream in one round
        self.wall = Average(1.0, most=recent, weight=0.0)
        self.overhead = Average(200.0, most=24)
        self.streams = Average(1.0, most=8, weight=0.0)  # that share a forward
        self.step = Average(1000.0, most=16, weight=0.0)  # a draft forward
        self.wait = Average(0.0, most=24, weight=0.0)
        self.message = Average(200.0, most=24)  # to the drafter and back

    def observe(self, stats: RoundStats) -> None:
        self.rounds += 1
        self.tokens.add(stats.committed)
        self.wall.add(max(1.0, stats.wall_us))
        self.overhead.add(min(max(0.0, stats.wall_us - stats.forward_us - stats.wait_us), stats.forward_us))
        self.streams.add(stats.rows / (1 + stats.window))
        self.wait.add(stats.wait_us)
        if stats.draft_steps > 0 and stats.draft_us > 0:
            # The drafter books a batched forward in equal shares to the streams in it.
            step = stats.draft_us / stats.draft_steps * max(1.0, self.streams.value)
            self.step.add(min(step, 8 * self.step.value) if self.step.count else step)

    @property
    def rate(self) -> float:
        """Tokens per microsecond of one stream; 0: not known."""
        if not self.rounds:
            return 0.0
        return self.tokens.value / self.wall.value

    def restart(self) -> None:
        """A new setting is in force: what was measured under the old one says nothing of it."""
        self.tokens.count = self.wall.count = 0.0

    def per_stream(self, cost: LineCost) -> Callable[[float], float]:
        """The forward's time by the rows of one stream, all streams being alike."""
        streams = max(1.0, self.streams.value)
        return lambda rows: cost(rows * streams)
