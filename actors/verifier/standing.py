"""What the verifier has measured of a drafter, whatever that says of itself, and whether it is lent anything at
present. What it has brought to one stream, and whether that rests: :mod:`actors.verifier.course`.

Both follow from one ratio that the drafter has no say in: the tokens of its rounds over those that the same time would
have brought without it. A drafter can change no token, but it can cost time: sure of rubbish, it has windows verified
for nothing; silent or slow, it is waited for; busy, it is listened to, and takes memory bandwidth. Methods that a user
names draft whatever that costs; only ``auto`` rests.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

from actors.estimate import Estimate

PAYS = 1.02  # of plain decoding: below, a core works for nothing, even where that does no harm
PROMISED = 8.0  # rounds' worth of trust in what the model of a round promises, as long as little is measured
LOOK = 8.0  # rounds' worth of plain decoding before a verdict: what is lost until then is 3% of some 250 rounds
SURE = 3.0  # standard errors: it is asked every round
# Rounds' worth after which the mean's sign decides: a round's ratio scatters by some 0.6, so 256 tell 4%, and where the
# two sides are no further apart than that neither loses much.
SETTLED = 256
TRIAL = 0.25  # of those are to be seen anew after a pause, where nothing is sure
FIRST_REST, MAX_REST = 64, 4096  # rounds without it, doubled while trials fail: at last they cost 1% of the rounds
MAX_STALL = 3.0  # times a plain round: what is longer in one round is no more certain for it
MAX_KNOWN = 256  # drafters
SLACK = 1.15  # hits over claimed hits of an honest drafter vary by about a tenth


class Standing:
    """Of one drafter with one kind of requests, over all of them."""

    def __init__(
        self,
        pays: float = PAYS,
        settled: float = SETTLED,
        scatter: float = 0.0,
        sure: float = SURE,
        first_rest: int = FIRST_REST,
    ) -> None:
        """``pays``: the least speed-up with which it is lent anything. ``settled``: rounds' worth after which the
        mean's sign decides. ``scatter``: by how much a round's ratio is taken to differ from others at least, because
        those seen may be of one text. ``sure``: standard errors by which the mean must be below. ``first_rest``: rounds
        of the first pause."""
        self.pays, self.settled, self.scatter, self.sure, self.first_rest = pays, settled, scatter, sure, first_rest
        self.speedup = Estimate(1.0, memory=settled)  # over decoding without it; weighs rounds of that
        self.rate = Estimate(memory=10)  # tokens per second of one of its streams; remembers so many seconds
        self.claims = Estimate(1.0, weight=1, memory=60)  # right drafts over those that its probabilities promised
        self.rest = first_rest  # rounds of the next pause
        self._left = 0.0  # rounds of the pause
        self._fresh = 0.0  # rounds' worth since the last one

    @property
    def trust(self) -> float:
        """The factor that its probabilities are taken with, at most 1."""
        return min(1.0, SLACK * self.claims.mean)

    def claimed(self, chance: float, right: bool) -> None:
        """Its first choice was taken for so likely where the target has now decided."""
        self.claims.add_ratio(float(right), min(1.0, chance / self.trust))

    def round(self, committed: float, without: float, wall_us: float) -> None:
        """A round with it: ``committed`` tokens in ``wall_us``, where ``without`` would have come in that time without
        it."""
        self.rate.add_ratio(committed, wall_us / 1e6)
        self.speedup.add_ratio(committed, min(without, MAX_STALL * committed))
        self._fresh += without
        if self.speedup.weight >= self.settled and not self.loses:
            self.rest = self.first_rest

    def prior(self, promised: float) -> float:
        """The speed-up that others' experience lets expect, where the model of a round has ``promised`` so much."""
        return self.speedup.towards(promised, PROMISED * (1 - self.speedup.weight / self.settled))

    @property
    def loses(self) -> bool:
        """Whether it brings too little for what it costs: surely, or in the long run."""
        if self._fresh < LOOK:
            return False
        settled = self.speedup.weight >= self.settled and self.speedup.mean < self.pays
        error = max(self.speedup.error, self.scatter / math.sqrt(self.speedup.weight))
        return settled or self.speedup.mean + self.sure * error < self.pays

    def pause(self) -> None:
        """It loses: nothing for a while, each time for longer; then it is judged anew."""
        self._left = self.rest
        self._fresh = 0.0
        self.rest = min(MAX_REST, 2 * self.rest)
        self.speedup.discount((1 - TRIAL) * self.settled)

    def forget(self) -> None:
        """It was judged by what was believed of rounds without it, and now they are seen."""
        self.speedup.discount(0)
        self._fresh = 0.0

    def rested(self, rounds: int = 1) -> None:
        """Rounds of such requests that it did not have."""
        self._left = max(0, self._left - rounds)

    def pardon(self) -> None:
        """An operator wants it."""
        self._left, self.rest = 0, self.first_rest

    @property
    def paused(self) -> bool:
        return self._left > 0


class RequestKind(NamedTuple):
    """Requests that tell the same of a drafter."""

    method: str
    sampled: bool

    @property
    def told(self) -> str:
        return f"{self.method}, {'sampled' if self.sampled else 'greedy'}"


class Standings:
    """By who the drafter is (its key, or its name where there are none: not by connection, or a bad one would say Hello
    again) and kind of requests."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes | str, dict[RequestKind, Standing]] = OrderedDict()

    def of(self, who: bytes | str, kind: RequestKind) -> Standing:
        kinds = self._known.pop(who, None) or {}
        self._known[who] = kinds  # the last used is the last to be forgotten
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        standing = kinds.get(kind)
        if standing is None:
            standing = kinds[kind] = Standing()
        return standing

    def forget(self, method: str) -> None:
        """See :meth:`Standing.forget`."""
        for kinds in self._known.values():
            for kind, standing in kinds.items():
                if kind.method == method:
                    standing.forget()

    def all_of(self, who: bytes | str) -> list[Standing]:
        return list(self._known.get(who, {}).values())
