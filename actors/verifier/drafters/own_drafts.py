"""Whether the verifier itself guesses for the next round: drafts between forwards and, for several streams, retrieves.

The price of a draft step and of a row says how much is drafted; it does not know what asking proposers, growing trees
and learning from verdicts takes, nor that a draft model's weights have left the caches when the target is through. So
rounds with guesses are set against rounds without, each as they were measured, in all that they take. Where guesses
lose, none are made for a while, and each time for longer: the rule that drafters are judged by (:class:`Standing`).
Where they win, rounds without are looked at again, each time after longer, for the machine may be another by then.

Several streams are judged together, by how many they are. One that is alone is judged by its own text
(:class:`Course`); its kind rests only where hardly any text of it could gain. What it retrieves costs little there and
goes on, so only the draft model rests.
"""

from __future__ import annotations

import logging

from actors.cost import CostModel
from actors.estimate import Estimate
from actors.verifier.drafters.standing import (
    FIRST_REST,
    LOOK,
    MAX_REST,
    PAYS,
    SETTLED,
    TEXTS_DIFFER,
    Course,
    RequestKind,
    Standing,
)

log = logging.getLogger("duoactor.verifier")
MEMORY = 48  # rounds
AGREES = 0.1  # of what was known: by so much eight rounds differ from eight others
MAX_STALL = 1.5  # of the usual time: what is longer tells of the machine, not of the round
Group = int | RequestKind  # so many streams, by the binary digits of their number; or a stream that is alone


def group_of(streams: int, kind: RequestKind) -> Group:
    """Of a round of so many streams, one of them of that kind."""
    return kind if streams == 1 else streams.bit_length()


def _standing(group: Group) -> Standing:
    """A round of many streams tells as much as that many rounds of one: with eight to 15 a round's ratio was seen to
    scatter by 0.17, with two or three by 0.4, alone by 0.4 to 0.6."""
    if isinstance(group, int):
        return Standing(settled=max(2 * LOOK, SETTLED / 2 ** (group - 1)))
    return Standing(PAYS - TEXTS_DIFFER)


class _Judged:
    """Rounds of one group."""

    def __init__(self, group: Group) -> None:
        self.plain = Estimate(memory=MEMORY)  # a round without guesses, over its forward as the cost model expects it
        self.guesses = _standing(group)  # against that
        self.look = 0.0  # rounds without guesses that are to come, and ...
        self.believed = 0.0  # ... what ``plain`` was before them
        self.until_look = LOOK  # rounds with guesses
        self.gap = FIRST_REST  # such rounds between two looks; twice as many when a look has told nothing new

    def look_again(self) -> None:
        self.until_look, self.look, self.believed = self.gap, LOOK, self.plain.mean
        self.plain.discount(LOOK)

    def without(self, ratio: float) -> None:
        self.plain.add(min(ratio, MAX_STALL * self.plain.mean) if self.plain.known else ratio)
        self.guesses.rested()
        self.look -= 1
        if self.look == 0 and self.believed:
            changed = self.plain.mean / self.believed
            self.guesses.speedup.scale(changed)
            self.until_look = self.gap = min(MAX_REST, 2 * self.gap) if abs(changed - 1.0) < AGREES else FIRST_REST


class OwnDrafts:
    def __init__(self, cost: CostModel, promised: float = 1.0) -> None:
        """``promised``: the speed-up that a draft model lets expect, as long as no round has shown it."""
        self.cost, self.promised = cost, promised
        self._known: dict[Group, _Judged] = {}

    def pay(self, group: Group, course: Course | None = None) -> bool:
        """Whether the next round has guesses. ``course``: of the text of a stream that is alone."""
        judged = self._of(group)
        return judged.look <= 0 and not judged.guesses.paused and not (course is not None and course.resting)

    def brings(self, kind: RequestKind) -> float:
        """The speed-up of a stream of that kind that has them and no drafter."""
        guesses = self._of(kind).guesses
        return 1.0 if guesses.paused else max(1.0, guesses.prior(self.promised))

    def without(self, group: Group, streams: int, time_us: float, course: Course | None = None) -> None:
        """A round in which nothing was guessed, while so many streams decoded."""
        self._of(group).without(time_us / self.cost.plain(streams))
        if course is not None:
            course.rested()

    def made(self, group: Group, streams: int, tokens: int, time_us: float, course: Course | None = None) -> None:
        """A round in which something was guessed, or might have been; ``tokens``: of all its streams."""
        judged = self._of(group)
        judged.until_look -= 1
        if judged.until_look <= 0:
            judged.look_again()
        if not judged.plain.known:
            return
        committed, without = tokens / streams, time_us / (judged.plain.mean * self.cost.plain(streams))
        judged.guesses.round(committed, without, time_us)
        if judged.guesses.loses:
            whose = f"{streams} streams" if isinstance(group, int) else f"single streams ({group.told})"
            log.info("the verifier's own drafts do not pay for %s: they rest for %d rounds", whose, judged.guesses.rest)
            judged.guesses.pause()
        if course is not None:
            course.drafted(tokens, without, judged.guesses.prior(self.promised), plain_known=True)

    def _of(self, group: Group) -> _Judged:
        judged = self._known.get(group)
        if judged is None:
            judged = self._known[group] = _Judged(group)
        return judged
