"""The estimators of everything that is measured: of means (acceptance, times, delays, rates), and of slopes."""

from __future__ import annotations

import math


class Estimate:
    """The exponentially weighted mean of a noisy quantity, with its standard error.

    It is the plain mean of the first ``memory`` samples; after that, old ones fade.
    """

    __slots__ = ("mean", "memory", "variance", "weight")

    def __init__(self, mean: float = 0.0, weight: float = 0.0, memory: float = 32.0) -> None:
        """``mean``: a prior that counts as ``weight`` samples."""
        self.mean = mean
        self.variance = 0.0  # of a sample
        self.weight = weight  # of the samples in it
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
        self.weight = min(self.weight + weight, self.memory)
        step = min(1.0, weight / self.weight)
        off = sample - self.mean
        self.mean += step * off
        self.variance += step * ((1.0 - step) * off * off - self.variance)  # never below 0, as rounding could make it

    def add_ratio(self, part: float, whole: float) -> None:
        """Take a sample of a ratio of sums, such as hits over expected hits: its weight is ``whole``."""
        if whole > 0:
            self.add(part / whole, whole)

    def discount(self, weight: float) -> None:
        """Trust what is known as ``weight`` samples at most, because it may have changed unobserved."""
        self.weight = min(self.weight, weight)

    def scale(self, factor: float) -> None:
        """Multiply all samples so far by ``factor``: their unit has changed."""
        self.mean *= factor
        self.variance *= factor * factor

    def copy(self, memory: float) -> Estimate:
        """The same estimate with another ``memory``."""
        other = Estimate(self.mean, self.weight, memory)
        other.variance = self.variance
        return other

    def towards(self, prior: float, strength: float) -> float:
        """The mean with ``strength`` further samples of the value ``prior``."""
        return (self.weight * self.mean + strength * prior) / (self.weight + strength)


class Pooled(Estimate):
    """The estimate of one member of a group: it begins with what the group has shown, and what is added to it is added
    to the group's as well."""

    __slots__ = ("pool",)

    def __init__(self, pool: Estimate, borrowed: float, memory: float) -> None:
        """``borrowed``: samples that the group's mean counts for."""
        super().__init__(pool.mean, borrowed if pool.known else 0.0, memory)
        self.pool = pool

    def add(self, sample: float, weight: float = 1.0) -> None:
        super().add(sample, weight)
        self.pool.add(sample, weight)


class Slope:
    """The slope of y over x within groups, by least squares: each pair (x, y) is compared with the mean of its group,
    so that differences between groups do not count. Old pairs fade."""

    USUAL = 64.0  # pairs that a group's mean remembers
    MAX_STALL = 3.0  # a y (a forward that was preempted, perhaps) counts at most as this multiple of its group's mean

    def __init__(self, prior_weight: float, memory: float) -> None:
        """Both are in squares of x, as pairs weigh by the square of their distance from the group's mean: the weight of
        the prior of :meth:`towards`, and what is remembered. Pairs with equal x have no weight, and let none fade."""
        self.prior_weight, self.memory = prior_weight, memory
        self._usual: dict[int, tuple[Estimate, Estimate]] = {}  # by group: the means of x and y
        self._together = self._squares = 0.0  # sums of (x - mean x) (y - mean y) and of (x - mean x)^2

    def add(self, group: int, x: float, y: float, unit: float = 1.0) -> None:
        """Take a pair. Its ``y`` counts in units of ``unit``."""
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
        """The slope, in units of y for one of x, with ``prior`` in place of what is not known yet."""
        return (self._together + self.prior_weight * prior) / (self._squares + self.prior_weight)
