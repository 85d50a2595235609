"""The estimators of everything that is measured: acceptance, paces, delays, rates; and how one grows with another."""

from __future__ import annotations

import math


class Estimate:
    """The exponentially weighted mean of a noisy quantity, which knows how far it can be trusted and can forget.

    It is a plain mean until ``memory`` samples are in it; from then on old ones fade.
    """

    __slots__ = ("mean", "memory", "variance", "weight")

    def __init__(self, mean: float = 0.0, weight: float = 0.0, memory: float = 32.0) -> None:
        """``mean`` is a prior that counts as ``weight`` samples."""
        self.mean = mean
        self.variance = 0.0
        self.weight = weight
        self.memory = memory

    @property
    def known(self) -> bool:
        return self.weight > 0

    @property
    def error(self) -> float:
        """One standard error of the mean; infinite while nothing is known."""
        return math.sqrt(self.variance / self.weight) if self.weight > 0 else math.inf

    def add(self, sample: float, weight: float = 1.0) -> None:
        if weight <= 0:
            return
        self.weight = min(self.weight + weight, self.memory)
        step = min(1.0, weight / self.weight)
        off = sample - self.mean
        self.mean += step * off
        self.variance += step * ((1.0 - step) * off * off - self.variance)  # never below 0, as rounding could make it

    def add_ratio(self, part: float, whole: float) -> None:
        """A sample of a ratio of sums, such as hits over expected hits: it weighs as much as its ``whole``."""
        if whole > 0:
            self.add(part / whole, whole)

    def discount(self, weight: float) -> None:
        """Believe what is known no more than ``weight`` samples: the world may have changed unseen."""
        self.weight = min(self.weight, weight)

    def scale(self, factor: float) -> None:
        """The unit that it was measured in turns out to be another."""
        self.mean *= factor
        self.variance *= factor * factor

    def copy(self, memory: float) -> Estimate:
        """What is known now, to be remembered for so many samples."""
        other = Estimate(self.mean, self.weight, memory)
        other.variance = self.variance
        return other

    def towards(self, prior: float, strength: float) -> float:
        """The mean, drawn to ``prior`` as if that had been seen ``strength`` times."""
        return (self.weight * self.mean + strength * prior) / (self.weight + strength)


class Slope:
    """By how much one quantity grows with another, learnt from how pairs of them differ from what is usual in their
    group: what one group has more than another says nothing."""

    USUAL = 64.0  # pairs: the memory for what is usual
    MAX_STALL = 3.0  # times the usual: one that is preempted or pages in says no more

    def __init__(self, prior_weight: float, memory: float) -> None:
        """Both in squares of the first quantity: how far a prior is trusted, and what is remembered. Pairs that are
        alike tell nothing new, and nothing is forgotten for them."""
        self.prior_weight, self.memory = prior_weight, memory
        self._usual: dict[int, tuple[Estimate, Estimate]] = {}
        self._together = self._squares = 0.0

    def add(self, group: int, x: float, y: float, unit: float = 1.0) -> None:
        """``unit``: of ``y`` in this pair."""
        usual_x, usual_y = self._usual.setdefault(group, (Estimate(memory=self.USUAL), Estimate(memory=self.USUAL)))
        if usual_y.known:
            y = min(y, self.MAX_STALL * usual_y.mean)
            further = x - usual_x.mean
            squares = self._squares + further * further
            keep = min(1.0, self.memory / squares) if squares else 1.0
            self._together = keep * (self._together + further * (y - usual_y.mean) / unit)
            self._squares = keep * squares
        usual_x.add(x)
        usual_y.add(y)

    def towards(self, prior: float) -> float:
        """Units of ``y`` for one of ``x``."""
        return (self._together + self.prior_weight * prior) / (self._squares + self.prior_weight)
