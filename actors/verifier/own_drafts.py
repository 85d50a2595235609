"""Whether the verifier itself guesses for the next round: drafts between forwards and, for several streams, retrieves.

The price of a draft step and of a row says how much is drafted; it does not know what asking proposers, growing trees
and learning from verdicts takes, nor that a draft model's weights have left the caches when the target is through. So
rounds with guesses are set against rounds without, each as they were measured, in all that they take. Where guesses
lose, none are made for a while, and each time for longer: the rule that drafters are judged by (:class:`Standing`).
Where they win, rounds without are looked at again, each time after longer, for the machine may be another by then.

What a round without guesses takes is kept in units of the forwards between guesses before it. The cost model's running
correction learns from both, and their rows, the length of their text and what is left in the caches differ: set against
that, drafts that brought 0.97 at temperature 1 looked as if they brought 1.2. So a rest is looked at in its first
rounds only, which have the text and the machine of the guesses before.

Several streams are judged together, by how many they are. One that is alone is judged by its own text
(:class:`Course`); its kind rests only where hardly any text of it could gain. Only the draft model rests there: what is
retrieved is weighed by itself (:class:`actors.verifier.sources.retrieval.Hits`). A round in which the draft model was
asked and no step was worth its price counts like any other, since that it was asked takes time too. A text that it has
not read, and that is not worth reading, rests unasked.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.verifier.course import BORROWED, TEXTS_DIFFER, Course
from actors.verifier.standing import (
    FIRST_REST,
    LOOK,
    MAX_REST,
    PAYS,
    SETTLED,
    RequestKind,
    Standing,
)

log = logging.getLogger("duoactor.verifier")
MEMORY = 48  # rounds
PACE_MEMORY = 5  # rounds: a look may follow a few rounds after a rest in which the machine has changed
LEAST_SLOWDOWN = 0.01  # of a forward on a clock that stands still
AGREES = 0.1  # of what was known: by so much eight rounds differ from eight others
# The first rests of many streams are so many times as long as those of two or three. Each trial begins with reading all
# their texts, so that 16 streams that gain nothing spent 5% of their first minute on trials; and the more streams a
# round has, the surer is the verdict.
REST_TOGETHER = 4
MAX_STALL = 1.5  # of the usual time: what is longer tells of the machine, not of the round
# Standard errors after which the texts of a kind rest that are alone. A wrong rest costs what drafts would have brought
# to 64 rounds, and is mended by the next look; with three errors the first 164 rounds with drafts at temperature 1
# (speed-up 0.74) and 249 greedy ones (0.84) were made for certainty's sake
PROBABLY = 1.0
NORMAL = NormalDist()
Group = int | RequestKind  # so many streams, by the binary digits of their number; or a stream that is alone


class RetrievalAlone(NamedTuple):
    """What a stream that is alone would have verified in a round without the draft model: how many tokens of it were
    right, and the microseconds that it would have taken beside a round without guesses."""

    tokens: int = 0
    time_us: float = 0.0


NO_RETRIEVAL = RetrievalAlone()


def group_of(streams: int, kind: RequestKind) -> Group:
    """Of a round of so many streams, one of them of that kind."""
    return kind if streams == 1 else streams.bit_length()


def _standing(group: Group) -> Standing:
    """A round of many streams tells as much as that many rounds of one: with eight to 15 a round's ratio was seen to
    scatter by 0.17, with two or three by 0.4, alone by 0.4 to 0.6."""
    if isinstance(group, int):
        first_rest = FIRST_REST * min(REST_TOGETHER, 2 ** max(0, group - 2))
        return Standing(settled=max(2 * LOOK, SETTLED / 2 ** (group - 1)), first_rest=first_rest)
    return Standing(PAYS - TEXTS_DIFFER, scatter=math.sqrt(BORROWED) * TEXTS_DIFFER, sure=PROBABLY)


class Pace:
    """Forwards of rounds with guesses, and how long ago the last was: of several streams, or of the text of one."""

    def __init__(self) -> None:
        self.slowdown = Estimate(memory=PACE_MEMORY)  # against the calibration
        self.rested = 0  # rounds since

    def drafted(self, slowdown: float | None) -> float:
        """None: not seen. Returns what is believed."""
        self.rested = 0
        if slowdown is None:
            return self.slowdown.mean or 1.0
        return _add(self.slowdown, max(LEAST_SLOWDOWN, slowdown))


class OwnCourse(Course):
    """What the verifier's own drafts have brought to one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.pace = Pace()


class _Judged:
    """Rounds of one group."""

    def __init__(self, group: Group) -> None:
        self.pace = Pace()  # where it has several streams
        self.plain = Estimate(memory=MEMORY)  # a round without guesses, over its calibrated forward at that pace
        self.guesses = _standing(group)  # against that
        self.look = 0.0  # rounds without guesses that are to come, and ...
        self.believed = 0.0  # ... what ``plain`` was before them
        self.until_look = LOOK  # rounds with guesses
        self.gap = FIRST_REST  # such rounds between two looks; twice as many when a look has told nothing new

    def look_again(self) -> None:
        self.until_look, self.look, self.believed = self.gap, LOOK, self.plain.mean
        self.plain.discount(LOOK)

    def without(self, ratio: Callable[[], float], pace: Pace, rounds: int) -> None:
        """``ratio``: of a round's time to its calibrated forward; rests are mostly longer than it is looked at."""
        if pace.rested < LOOK and pace.slowdown.known:
            _add(self.plain, ratio() / pace.slowdown.mean, rounds)
        pace.rested += rounds
        self.guesses.rested(rounds)
        looked, self.look = self.look > 0, self.look - rounds
        if looked and self.look <= 0 and self.believed:
            changed = self.plain.mean / self.believed
            self.guesses.speedup.scale(changed)
            self.until_look = self.gap = min(MAX_REST, 2 * self.gap) if abs(changed - 1.0) < AGREES else FIRST_REST

    def made(self, slowdown: float | None, ratio: float, pace: Pace) -> float:
        """Of its forward (None: not seen), and of the round's time to its calibrated forward. Returns how many rounds
        without guesses would have taken as long."""
        slowdown = pace.drafted(slowdown)
        self.until_look -= 1
        if self.until_look <= 0:
            self.look_again()
        return ratio / (slowdown * self.plain.mean) if self.plain.known else 0.0


def _add(estimate: Estimate, sample: float, rounds: int = 1) -> float:
    """Returns as much of it as is believed."""
    if estimate.known:
        sample = min(max(sample, estimate.mean / MAX_STALL), MAX_STALL * estimate.mean)
    estimate.add(sample, rounds)
    return sample


class OwnDrafts:
    def __init__(self, cost: CostModel, promised: float = 1.0) -> None:
        """``promised``: the speed-up that a draft model lets expect, as long as no round has shown it."""
        self.cost, self.promised = cost, promised
        self._known: dict[Group, _Judged] = {}

    def pay(self, group: Group, course: OwnCourse | None = None) -> bool:
        """Whether the next round has guesses. ``course``: of the text of a stream that is alone."""
        judged = self._of(group)
        return judged.look <= 0 and not judged.guesses.paused and not (course is not None and course.resting)

    def brings(self, kind: RequestKind) -> float:
        """The speed-up of a stream of that kind that has them and no drafter."""
        guesses = self._of(kind).guesses
        return 1.0 if guesses.paused else max(1.0, guesses.prior(self.promised))

    def saves(self, kind: RequestKind, promised: float) -> float:
        """The part of its time that they are expected to save a stream that is alone: texts differ, and those that lose
        rest. ``promised``: their speed-up, as far as no round has shown it."""
        prior = self._of(kind).guesses.prior(promised)
        better = (prior - 1.0) / TEXTS_DIFFER
        gain = TEXTS_DIFFER * (NORMAL.pdf(better) + better * NORMAL.cdf(better))  # the mean of what exceeds 1
        return gain / (1.0 + gain)

    def without(
        self, group: Group, streams: int, time_us: float, course: OwnCourse | None = None, rounds: int = 1
    ) -> None:
        """``rounds`` in ``time_us`` in which nothing was guessed, while so many streams decoded."""
        judged = self._of(group)
        ratio = lambda: time_us / rounds / self.cost.uncorrected(streams)  # noqa: E731
        judged.without(ratio, judged.pace if course is None else course.pace, rounds)
        if course is not None:
            course.rested(rounds)

    def made(
        self,
        group: Group,
        streams: int,
        tokens: int,
        time_us: float,
        slowdown: float | None,
        reading_us: float = 0.0,
        course: OwnCourse | None = None,
        retrieved: RetrievalAlone = NO_RETRIEVAL,
    ) -> None:
        """A round in which something was guessed, or might have been; ``tokens``: of all its streams. ``slowdown``: of
        its forward, against the calibration; None where that also read a prompt. ``reading_us``: of ``time_us``, what
        reading texts for drafts took; whoever goes on with a text has that behind it. ``retrieved``: what would have
        come without the draft model."""
        judged = self._of(group)
        pace = judged.pace if course is None else course.pace
        without = judged.made(slowdown, time_us / self.cost.uncorrected(streams), pace)
        if not judged.plain.known:
            return
        without *= (1 + retrieved.tokens) / (1 + retrieved.time_us * without / max(1e-9, time_us))
        committed = tokens / streams
        judged.guesses.round(committed, without, time_us)
        if judged.guesses.loses:
            whose = f"{streams} streams" if isinstance(group, int) else f"single streams ({group.told})"
            log.info("the verifier's own drafts do not pay for %s: they rest for %d rounds", whose, judged.guesses.rest)
            judged.guesses.pause()
        if course is not None:
            without *= max(0.0, time_us - reading_us) / max(1e-9, time_us)
            course.drafted(tokens, without, judged.guesses.prior(self.promised), plain_known=True)

    def _of(self, group: Group) -> _Judged:
        judged = self._known.get(group)
        if judged is None:
            judged = self._known[group] = _Judged(group)
        return judged
