"""A second drafter's guesses for a stream, scored against what is committed already: none of them is verified.

Texts of a kind differ in what a drafter brings them, so what another has brought to others does not tell whether this
stream would do better with it. A real lease would, at the price of the drafts that the stream has now. So the other is
lent the stream's past, under an epoch of its own: the places at which the present drafter's first choice was judged. At
each it drafts one token and is then told what was committed up to the next. Noise is keyed by position (arXiv
2408.07978), so that it says what it would have said there at the time. To the drafter this is a lease like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.tree.tree import ROOT
from actors.verifier.course import MIN_PLACES, Place, agreement
from actors.verifier.drafters import DrafterPeer
from actors.verifier.pool import Pool
from actors.verifier.state import State
from actors.verifier.streams import Request
from protocols.messages import Close, Decline, Grow, Message, Method, Open, Plan, Resync, Verdict

Send = Callable[[bytes, Message], bool]
LIMIT_S = 5.0  # a drafter of 75 ms a step has answered for all places by then, and one that is gone is not waited for
# Times as long as a shadow took, the reading of the text included, before a drafter that streams wait for has another.
# Its steps are one leaf more in theirs, and for the reading they have half of its time.
PAUSE = 8
PLAN = Plan(Method.SPS, 1)  # one token, told as soon as it is there


class Shadow:
    """One drafter beside one stream: its answers in, the next places out. No I/O, no clock."""

    def __init__(
        self, request: Request, drafter: DrafterPeer, epoch: int, places: Sequence[Place], began: float
    ) -> None:
        """``places``: where the present drafter was judged, in the order of the text, at least one; all in what is
        committed. ``began``: seconds."""
        self.request, self.drafter, self.epoch = request, drafter, epoch
        self.places, self.began = places, began
        self.judged: list[Place] = []  # the same, as far as it has answered, and whether it was right

    @property
    def over(self) -> bool:
        return len(self.judged) == len(self.places)

    def opening(self) -> Open:
        spec, salt = self.request.spec, self.request.message.cache_salt
        prefix = tuple(spec.committed[: self.places[0].length])
        return Open(spec.rid, self.epoch, prefix, spec.prompt_len, spec.sampling, PLAN, salt)

    def answered(self, message: Grow) -> bool:
        """Whether that tells what it drafts at the place in question, which is judged then. Who has nothing to say
        there is wrong."""
        if self.over or not message.complete or not _even(message):
            return False
        length = self.places[len(self.judged)].length
        if message.base_len != length:
            return False
        said = zip(message.parents, message.logprobs, message.tokens, strict=True)
        _, first = max(((logprob, token) for parent, logprob, token in said if parent == ROOT), default=(0.0, None))
        self.judged.append(Place(length, first == self.request.spec.committed[length]))
        return True

    def verdict(self) -> Verdict:
        """What was committed between the last place and the one in question, which is not the first."""
        spec, number = self.request.spec, len(self.judged)
        base, length = self.places[number - 1].length, self.places[number].length
        return Verdict(spec.rid, self.epoch, number, base, tuple(spec.committed[base:length]))

    def compared(self) -> tuple[int, int, int]:
        """At how many places both had a first choice; at how many of these this one's was right, and the present
        drafter's."""
        both = [(own, place) for own, place in zip(self.judged, self.places, strict=False) if place.right is not None]
        return len(both), sum(bool(own.right) for own, _ in both), sum(bool(place.right) for _, place in both)

    def agreements(self) -> tuple[float, float]:
        """The present drafter's at the judged places, and this one's."""
        return agreement(self.places[: len(self.judged)]), agreement(self.judged)


def _even(message: Grow) -> bool:
    return len(message.parents) == len(message.tokens) == len(message.logprobs)


class Shadows:
    """One at a time, so that what all of them cost is bounded by what one does."""

    def __init__(self, state: State, pool: Pool, send: Send, told: Callable[[Request, float], object]) -> None:
        """``told``: more is known of who should draft for that request, now, in seconds."""
        self.state, self.pool, self.send, self.told = state, pool, send, told
        self.running: Shadow | None = None

    def consider(self, request: Request, now: float) -> None:
        """Ask another drafter about that request, if there is one to ask and none is being asked."""
        if self.running is not None or (drafter := self.pool.to_ask(request, now)) is None:
            return
        present = self.state.drafters.of(request.drafter)
        request.course(drafter.actor_id).asked(request.spec.round)
        if present is None or not self.pool.hopeful(request, present, drafter):
            return
        places = tuple(request.course(present.actor_id).places)
        shadow = Shadow(request, drafter, self.state.next_epoch(), places, now)
        if self._ask(shadow, shadow.opening()):
            self.running = shadow

    def heard(self, drafter: DrafterPeer, message: Grow | Resync | Decline, now: float) -> bool:
        """Whether the message is of use to the shadow that runs. Resync: something was lost, and what is missing is not
        worth another message with the text."""
        shadow = self.running
        if shadow is None or shadow.drafter is not drafter or shadow.epoch != message.epoch:
            return False
        if shadow.request.rid != message.rid:
            return False
        if isinstance(message, Decline):
            self._close(shadow, now)
            return True
        if isinstance(message, Resync):
            self._end(shadow, now)
            return True
        used = shadow.answered(message)
        if used and (shadow.over or not self._ask(shadow, shadow.verdict())):
            self._end(shadow, now)
        return used

    def look(self, now: float) -> None:
        """Call it now and then: one that takes too long ends."""
        if self.running is not None and now - self.running.began > LIMIT_S:
            self._end(self.running, now)

    def leave(self, request: Request, now: float) -> None:
        """That request loses the drafter that it had: there is nothing to compare with."""
        if self.running is not None and self.running.request is request:
            self._close(self.running, now)

    def vacate(self, drafter: DrafterPeer, now: float) -> None:
        """That drafter is gone, or its room is wanted for a request."""
        if self.running is not None and self.running.drafter is drafter:
            self._close(self.running, now)

    def _end(self, shadow: Shadow, now: float) -> None:
        """What it has shown is kept, and the request may move."""
        self._close(shadow, now)
        request, present = shadow.request, self.state.drafters.of(shadow.request.drafter)
        if present is not None and len(shadow.judged) >= MIN_PLACES:
            drafter = shadow.drafter
            foreseen = self.pool.foreseen(request, present, drafter, *shadow.agreements())
            others = drafter.standing(request).speedup.weight
            request.course(drafter.actor_id).foresee(foreseen, len(shadow.judged), others)
            self.told(request, now)

    def _close(self, shadow: Shadow, now: float) -> None:
        self.running = None
        self.send(shadow.drafter.peer, Close(shadow.request.rid, shadow.epoch))
        if shadow.judged:
            shadow.drafter.answered(*shadow.compared())
        pause = PAUSE if shadow.drafter.leases else 1
        shadow.drafter.shadow_after = now + pause * (now - shadow.began)

    def _ask(self, shadow: Shadow, message: Open | Verdict) -> bool:
        shadow.drafter.ask()
        return self.send(shadow.drafter.peer, message)
