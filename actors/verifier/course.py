"""What one stream tells of one drafter, and whether it makes use of it or rests: by its rounds with it, and by what it
would have drafted beside another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from actors.estimate import Estimate
from actors.verifier.standing import FIRST_REST, LOOK, MAX_REST, MAX_STALL, PAYS

# Rounds' worth of trust in a drafter's other texts, where a stream knows little of its own: the square of what rounds
# differ by over the square of what texts do. At temperature 1 that was (0.59 / 0.1) squared with drafters, and
# (0.40 / 0.14) squared with the verifier's own draft (31 texts of seven tasks); greedy (0.39 / 0.21) squared.
BORROWED = 16.0
TEXTS_DIFFER = 0.14
MAX_PLACES = 64  # that another drafter is asked about: two shares of so many differ by 0.06 by chance
MIN_PLACES = 16  # fewer are not worth a text to read
# Rounds' worth that a place tells of a speed-up. By the model of a round that rises by 2.2 times what the share of
# right choices does, which scatters by 0.45 from place to place where two drafters differ at every fifth: of a speed-up
# of 1.5 that is 1.5, where a round's ratio scatters by 0.6.
PLACE = 0.16


class Place(NamedTuple):
    """Where a drafter was judged: whether its first choice behind so many tokens was ``right``; None: it had none."""

    length: int
    right: bool | None


def agreement(places: Iterable[Place]) -> float:
    """The share of right choices, by the rule of succession: few places do not tell that a drafter is always right, or
    never."""
    right = [place.right for place in places if place.right is not None]
    return (sum(right) + 1) / (len(right) + 2)


class Course:
    """What a drafter has brought to one stream, and whether the stream makes use of it or rests."""

    def __init__(self) -> None:
        self.speedup = Estimate(memory=4 * BORROWED)  # as :attr:`Standing.speedup`
        self.resting = False
        self._rest = FIRST_REST  # rounds of the next rest
        self._left = 0  # rounds of the rest
        self._fresh = 0.0  # rounds' worth with the drafter since the last one

    def expected(self, prior: float) -> float:
        """The speed-up to be expected where ``prior`` is that of other texts."""
        return self.speedup.towards(prior, BORROWED)

    def drafted(self, committed: int, without: float, prior: float, plain_known: bool) -> None:
        """See :meth:`Standing.round`; ``prior``: see :meth:`expected`. As long as it is only believed what rounds take
        without a drafter (not ``plain_known``), a rest is but a look at them."""
        self.speedup.add_ratio(committed, min(without, MAX_STALL * committed))
        self._fresh += without
        if self._fresh < LOOK or self.expected(prior) >= PAYS:
            return
        self.speedup.discount(LOOK if plain_known else 0)  # it may be another text when the rest is over
        self.rest(look=not plain_known)

    def rest(self, look: bool = False) -> None:
        """The stream does without its drafts for a while, each time for longer, or for a ``look`` at rounds without."""
        self.resting, self._fresh, self._left = True, 0.0, round(LOOK) if look else self._rest
        if not look:
            self._rest = min(MAX_REST, 2 * self._rest)

    def rested(self, rounds: int = 1) -> None:
        """Rounds without its drafts."""
        self._left -= rounds
        self.resting = self.resting and self._left > 0


class DrafterCourse(Course):
    def __init__(self) -> None:
        super().__init__()
        self.places = deque[Place](maxlen=MAX_PLACES)  # the latest at which it drafted
        self._foreseen = Estimate(memory=PLACE * MAX_PLACES)  # speed-up, by what it said at another drafter's places
        self._others = 0.0  # rounds' worth that its other texts tell beside that
        self._asked_at = 0  # rounds of the stream when it was last asked for that

    def expected(self, prior: float) -> float:
        if self._foreseen.known:
            prior = self._foreseen.towards(prior, self._others)
        return super().expected(prior)

    @property
    def known(self) -> bool:
        """Whether anything tells what it brings to this text."""
        return self.speedup.known or self._foreseen.known

    def judged(self, length: int, right: bool | None) -> None:
        """See :class:`Place`."""
        self.places.append(Place(length, right))

    def due(self, rounds: int) -> bool:
        """Whether it may be asked after so many rounds of the stream what it would have drafted: after twice as many as
        the last time, so that of a stream of n rounds it is asked some log n times."""
        return rounds >= 2 * self._asked_at

    def asked(self, rounds: int) -> None:
        """It is asked now."""
        self._asked_at = rounds

    def foresee(self, speedup: float, places: int, others: float) -> None:
        """It would have brought that, by so many places, where ``others`` rounds' worth of its other texts are known:
        none of them, and the model's promise for any text tells nothing beside. What it did bring to this text is of an
        older part of it."""
        self._foreseen.add(speedup, PLACE * places)
        self._others = BORROWED * others / (BORROWED + others)
        self.speedup.discount(LOOK)
