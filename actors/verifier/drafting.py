"""Whether the verifier itself guesses for rounds that several streams share: retrieves, and drafts between forwards.

The price of a row says how much is drafted; it does not know what asking proposers, growing trees and learning from
verdicts takes for each text, whatever comes of it. So rounds with drafts are set against rounds of as many streams
without, each as they were measured, in all that they take. Where drafts lose, nothing is asked for a while, and each
time for longer: the rule that drafters are judged by (:class:`Standing`). Where they win, rounds without are looked at
again, each time after longer, for the machine may be another by then.
"""

from __future__ import annotations

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.verifier.drafters.standing import FIRST_REST, LOOK, MAX_REST, Standing

MEMORY = 48  # rounds


class _Load:
    """About so many streams."""

    def __init__(self) -> None:
        self.plain = Estimate(memory=MEMORY)  # a round without drafts, over its forward as the cost model expects it
        self.drafts = Standing()
        self.look = LOOK  # rounds without drafts that are to come
        self.until_look = self.gap = FIRST_REST  # rounds with drafts


class Drafting:
    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self._known: dict[int, _Load] = {}  # by the binary digits of the number of streams

    def pays(self, streams: int) -> bool:
        """Whether the next round of so many streams drafts. A few rounds without drafts come first, to compare with."""
        load = self._of(streams)
        return load.look <= 0 and not load.drafts.paused

    def without(self, streams: int, time_us: float) -> None:
        """A round in which nothing was drafted, while so many streams decoded."""
        load = self._of(streams)
        load.plain.add(time_us / self.cost.plain(streams))
        load.drafts.rested()
        load.look -= 1

    def drafted(self, streams: int, tokens: int, time_us: float) -> None:
        """A round in which something was, or might have been."""
        load = self._of(streams)
        if not load.plain.known:
            return
        load.drafts.round(tokens / streams, time_us / (load.plain.mean * self.cost.plain(streams)), time_us)
        load.until_look -= 1
        if load.drafts.loses:
            load.drafts.pause()
        elif load.until_look <= 0:
            load.gap = load.until_look = min(MAX_REST, 2 * load.gap)
            load.look = LOOK
            load.plain.discount(1)
            load.drafts.forget()

    def _of(self, streams: int) -> _Load:
        return self._known.setdefault(streams.bit_length(), _Load())
