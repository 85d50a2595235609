"""What the verifier has measured of a drafter, whatever that says of itself: what it is worth, and whether it loses.

A drafter can change no token, but it can cost time: sure of rubbish, it has windows verified for nothing; silent or
slow, it is waited for; busy, it is listened to. All of that shows in one ratio that it has no say in: the tokens of its
rounds over those that the same time would have brought without it.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from actors.estimate import Estimate

LOOK = 8.0  # rounds' worth of plain decoding before a verdict: what is lost until then is 3% of some 250 rounds
SURE = 3.0  # standard errors
LOSS = 0.97  # of plain decoding: a drafter that brings less loses; plain rounds are known to about 3%
FIRST_PAUSE_S, MAX_PAUSE_S = 2.0, 600.0  # of a drafter that loses, doubled each time; a trial costs some ten rounds
MAX_STALL = 3.0  # times a plain round: what is longer in one round is no more certain for it
MAX_STANDINGS = 1024
SLACK = 1.15  # hits over claimed hits of an honest drafter vary by about a tenth


class Standing:
    """Of one drafter with one method, over all its requests."""

    def __init__(self) -> None:
        self.speedup = Estimate(1.0, memory=96)  # over decoding without it; weighs rounds of that
        self.rate = Estimate(memory=10)  # tokens per second of one of its streams; remembers so many seconds
        self.claims = Estimate(1.0, weight=1, memory=60)  # right drafts over those that its probabilities promised
        self.paused_until = -math.inf  # seconds: it is not lent anything before
        self.pause_s = FIRST_PAUSE_S  # of the next pause

    @property
    def trust(self) -> float:
        """The factor that its probabilities are taken with, at most 1."""
        return min(1.0, SLACK * self.claims.mean)

    def claimed(self, chance: float, right: bool) -> None:
        """Its first choice was taken for so likely where the target has now decided."""
        self.claims.add_ratio(float(right), min(1.0, chance / self.trust))

    def round(self, committed: int, without: float, wall_us: float) -> None:
        """A round in which its drafts were verified, or it was waited for: ``committed`` tokens in ``wall_us``, where
        ``without`` would have come in that time without it."""
        self.rate.add_ratio(committed, wall_us / 1e6)
        self.speedup.add_ratio(committed, min(without, MAX_STALL * committed))

    @property
    def loses(self) -> bool:
        """Whether it surely costs more than it brings."""
        return self.speedup.weight >= LOOK and self.speedup.mean + SURE * self.speedup.error < LOSS

    def pause(self, now: float) -> None:
        """It loses: nothing for a while, each time for longer; then it is judged anew."""
        self.paused_until = now + self.pause_s
        self.pause_s = min(MAX_PAUSE_S, 2 * self.pause_s)
        self.speedup.discount(0)

    def pardon(self) -> None:
        """An operator wants it."""
        self.paused_until, self.pause_s = -math.inf, FIRST_PAUSE_S

    def paused(self, now: float) -> bool:
        return now < self.paused_until


class Standings:
    """By who the drafter is (its key, or its name where there are none: not by connection, or a bad one would say Hello
    again) and method."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes | str, str], Standing] = OrderedDict()

    def of(self, who: bytes | str, method: str) -> Standing:
        standing = self._known.setdefault((who, method), Standing())
        self._known.move_to_end((who, method))
        if len(self._known) > MAX_STANDINGS:
            self._known.popitem(last=False)
        return standing

    def all_of(self, who: bytes | str) -> list[Standing]:
        return [standing for (one, _), standing in self._known.items() if one == who]
