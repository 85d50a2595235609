"""What one source of drafts gained, and its rests."""

from __future__ import annotations

from typing import NamedTuple

from actors.backoff import Backoff
from actors.estimate import Estimate


class Stakes(NamedTuple):
    """The costs of a trial of a source, and of its pause."""

    pays: float  # least gain over decoding without it
    look: float  # rounds without it that its time since the last rest must be worth, before it is judged
    first: int  # rounds of the first rest


DRAFTS = Stakes(1.02, 8.0, 64)  # below, work gains nothing
# Asking costs a fraction of a millisecond; a text may begin to repeat itself at any place.
LOOKUPS = dict.fromkeys(("text", "memory", "datastore", "recycling"), Stakes(1.0, 1.0, 1))


class Trial(Backoff):
    """The gain of one source, and its rests: for one stream, or for all streams of a kind."""

    def __init__(self, stakes: Stakes, gain: Estimate) -> None:
        """``gain``: tokens over those without the source, as far as known."""
        super().__init__(stakes.first)
        self.stakes, self.gain = stakes, gain
        self.rounds = 0  # rounds that it was judged by
        self.used = 0  # when it was asked for last
        self.fresh = 0.0  # rounds without it that its time since the last rest was worth

    def judge(self, expected: float, now: float) -> bool:
        """Let it rest if too little is ``expected`` of it. Returns whether it does."""
        if self.fresh < self.stakes.look:
            return False
        if expected >= self.stakes.pays:
            self.succeed()
            return False
        self.fresh = 0.0
        self.rest(now)
        self.gain.discount(self.stakes.look)
        return True
