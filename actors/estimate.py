"""The one estimator of everything that is measured: acceptance, paces, delays, rates."""

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
