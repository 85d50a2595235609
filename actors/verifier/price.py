"""Costs in time: the verifier's only model of cost, corrected by every round. Times are microseconds.

A forward takes the calibrated curve's time for its rows, times a running factor; more, where several streams share it,
because each has keys and values of its own; and more for each row of a prompt. Beside it a round has a share for every
stream. Tokens per microsecond now are the price of all of them (docs/how-it-works.md).
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection
from itertools import accumulate

from actors.calibration import USUAL
from actors.chains import Costs
from actors.cost import CostModel, Curve
from actors.estimate import Estimate
from actors.tree.window import Cost
from actors.verifier.rounds import Round

log = logging.getLogger("duoactor.verifier")
PIECE_MEMORY = 4  # pieces of prompts: each sees more tokens than the one before, so that its rows take longer
GUESSED = 8  # forwards without drafts, after which it is known what their rounds take
GUESS = 1e-3  # weight, in such forwards, of a round that is cold or asked for drafts: it serves until there are any
GOOD_AGREEMENT = 0.8  # a good draft's agreement: where even it does not pay, none is tried


class Price:
    def __init__(self, target: CostModel, measure_again: Callable[[], None] = lambda: None) -> None:
        """``target``: the calibration of its forwards. ``measure_again``: called once, if that is out of date."""
        self.target, self._measure_again = target, measure_again
        self._doubted = False
        # All by the binary digits of the number of streams. Calibrated time that a forward takes longer than one of a
        # single stream with as many rows; tokens per microsecond of each stream
        self._shared, self._rates = defaultdict[int, Estimate](Estimate), defaultdict[int, Estimate](Estimate)
        longest = target.own.rows[-1]
        slope = (target.own(longest) - target.own(1)) / max(1, longest - 1)
        self._prompt_row = Estimate(max(1e-3, slope), weight=1, memory=PIECE_MEMORY)
        # rest of a round, for each stream and forward: without drafts, and with drafts
        self._beside, self._beside_drafts = dict[int, Estimate](), dict[int, Estimate]()

    def forward(self, streams: int, drafts: int = 0) -> float:
        """Time of a forward with a row for each of ``streams`` and ``drafts`` further ones in all."""
        cost = self.target
        return cost(streams + drafts) + self._extra(streams) * cost.factor.mean

    def beside(self, streams: int) -> float:
        """Time of a round without its forward."""
        return streams * self._beside[_nearest(self._beside, streams)].mean if self._beside else 0.0

    def unmeasured(self, streams: int) -> int:
        """Forwards without drafts until it is known what a round of ``streams`` takes then: drafts are judged by it."""
        digits = streams.bit_length()
        if digits not in self._rates:
            return 1  # the first is cold
        return max(0, math.ceil(GUESSED - (self._beside[digits].weight if digits in self._beside else 0.0)))

    def interruption(self, streams: int) -> float:
        """Time beside its forward that a round with drafts takes longer than one of a row of forwards without."""
        both = self._beside_drafts.keys() & self._beside.keys()
        if not both:
            return 0.0
        nearest = _nearest(both, streams)
        return streams * max(0.0, self._beside_drafts[nearest].mean - self._beside[nearest].mean)

    @property
    def prompt_row(self) -> float:
        """Time of a prompt's row in a forward."""
        return self._prompt_row.mean

    def plain(self, streams: int) -> float:
        """Time of a round of ``streams`` without drafts, while no drafter works."""
        cost = self.target
        forward_us = (cost.lent.by_rows[streams] + self._extra(streams)) * cost.factor.mean
        return max(1.0, forward_us + self.beside(streams))

    def rows(self, streams: int) -> Cost:
        """Calibrated time of rows of drafts in a round of ``streams``, by their number."""
        return self.target.curve.beyond[streams]

    def cores(self, rows: int) -> float:
        """Time that a forward loses to a drafter on CPUs that it could have."""
        cost = self.target
        return 0.0 if cost.uses_lent else (cost.own(rows) - cost.lent(rows)) * cost.factor.mean

    def drafter_may_pay(self, streams: int) -> bool:
        """Whether a good draft could make up for the CPUs that a drafter takes from rounds of ``streams`` streams."""
        cost = self.target
        expected = accumulate(GOOD_AGREEMENT**length for length in range(9))  # further tokens change nothing any more
        each = enumerate(expected, 1)
        return not cost.lends or any(tokens * cost.lent(streams) > cost.own(streams * rows) for rows, tokens in each)

    def drafts_within(self, streams: int, time_us: float, most: int) -> int:
        """The rows of drafts that a round of ``streams`` has time for, at most ``most``."""
        return bisect_right(range(1, most + 1), time_us / self.target.factor.mean, key=self.rows(streams).__getitem__)

    def rate(self, streams: int) -> float:
        """Tokens per microsecond of all ``streams`` together now."""
        known = self._rates.get(streams.bit_length())
        return known.mean * streams if known is not None and known.known else streams / self.plain(streams)

    def chain(self, steps: Curve, message_us: float) -> Costs:
        """The costs of a stream's chains from a drafter, with the agreement that drafts mostly have."""
        cost = self.target
        return Costs(cost.own, steps, cost.factor.mean, self.beside(1), message_us, 1, USUAL)

    def observe(self, done: Round) -> None:
        each_us, streams = done.forward_us / done.steps, done.streams
        if streams == 0:
            self._observe_prompt(done, each_us - self.target(1))
            return
        digits = streams.bit_length()
        cold = digits not in self._rates
        self._rates[digits].add(done.tokens / streams / done.own_us)
        if done.prompt_rows:
            self._observe_prompt(done, each_us - self.forward(streams, done.drafts))
            return
        curve = self.target.curve.by_rows[done.rows]
        if streams > 1:  # first what is lasting, then what is left of it
            self._shared[digits].add_time(max(0.0, each_us / self.target.factor.mean - curve))
        self.target.factor.add_time(each_us / max(1e-9, curve + self._extra(streams)))
        beside_us = max(0.0, done.own_us - done.forward_us - done.waited_us) / done.steps / streams
        if done.drafts and done.unattended:
            self._beside_drafts.setdefault(digits, Estimate()).add_time(beside_us)
        else:
            self._observe_beside(digits, beside_us, done, cold)
        if not self._doubted and self.target.measured_busy:
            self._doubted = True
            log.info("rounds are faster than this model was measured; the next start measures it again")
            self._measure_again()

    def _observe_beside(self, digits: int, beside_us: float, done: Round, cold: bool) -> None:
        known = self._beside.setdefault(digits, Estimate())
        if cold or done.asked:
            if known.weight < 1:
                known.add(beside_us, weight=GUESS)
        elif known.weight < GUESSED:
            known.add(beside_us, weight=done.steps)
        else:
            known.add_time(beside_us, weight=done.steps)

    def _observe_prompt(self, done: Round, time_us: float) -> None:
        """A prompt's last piece teaches nothing: it has fewer rows than were asked for, nobody knows how many."""
        if done.prompt_rows and done.whole_piece:
            self._prompt_row.add_time(max(1e-3, time_us) / done.prompt_rows)

    def _extra(self, streams: int) -> float:
        if streams == 1 or (known := self._shared.get(streams.bit_length())) is None:
            return 0.0
        return known.mean


def _nearest(known: Collection[int], streams: int) -> int:
    """The binary digits of a number of streams that are known, next to those of ``streams``."""
    digits = streams.bit_length()
    return min(known, key=lambda other: (abs(other - digits), other))
