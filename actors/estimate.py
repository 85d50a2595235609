"""The estimator of everything that is measured: acceptance, times, delays, rates."""

from __future__ import annotations

import math

SURE = 3.0  # standard errors between a difference and zero: one in 740 errs
STALL = 3.0  # times what is known: a longer time (a page fault, a preempted core) is cut to this


class Estimate:
    """The exponentially weighted mean of a noisy quantity, with its standard error.

    It is the plain mean of the first ``memory`` samples; after that, old ones fade.
    """

    __slots__ = ("mean", "memory", "variance", "weight")

    def __init__(self, mean: float = 0.0, weight: float = 0.0, memory: float = 32.0) -> None:
        """``mean``: a prior that counts as ``weight`` samples."""
        self.mean = mean
        self.variance = 0.0  # variance of a sample
        self.weight = weight  # weight of the samples in it
        self.memory = memory

    @property
    def known(self) -> bool:
        """Whether there is a sample or a prior."""
        return self.weight > 0

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite while nothing is known."""
        return math.sqrt(self.variance / self.weight) if self.weight > 0 else math.inf

    def add(self, sample: float, weight: float = 1.0) -> None:
        """Take a sample that counts as ``weight`` of them."""
        if weight <= 0:
            return
        known = self.weight + weight  # a round calls this some thirty times, each builtin as often
        self.weight = known = known if known < self.memory else self.memory
        step = weight / known if weight < known else 1.0
        off = sample - self.mean
        self.mean += step * off
        self.variance += step * ((1.0 - step) * off * off - self.variance)  # never below 0, as rounding could make it

    def add_time(self, sample: float, weight: float = 1.0) -> None:
        """Take a time, or a factor on one: the only rule for outliers."""
        if self.weight > 0 and (mean := self.mean) > 0 and not mean / STALL <= sample <= mean * STALL:
            sample = mean / STALL if sample < mean else mean * STALL
        self.add(sample, weight)

    def add_ratio(self, part: float, whole: float) -> None:
        """Take a sample of a ratio of sums, such as hits over expected hits: its weight is ``whole``."""
        if whole > 0:
            self.add(part / whole, whole)

    def discount(self, weight: float) -> None:
        """Trust what is known as ``weight`` samples at most, because it may have changed unobserved."""
        self.weight = min(self.weight, weight)

    def towards(self, prior: float, strength: float) -> float:
        """The mean with ``strength`` further samples of the value ``prior``."""
        return (self.weight * self.mean + strength * prior) / (self.weight + strength)
