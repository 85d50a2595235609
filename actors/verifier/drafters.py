"""Who the drafters are, which requests they are lent, and who gets the next one. Pure bookkeeping."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from actors.cost import CostModel
from actors.verifier.peer_clock import PeerClock
from actors.verifier.standing import Standing, Standings
from actors.verifier.streams import Request
from actors.verifier.waits import DrafterPace
from protocols.messages import DrafterStatus, Grow, Hello, Promote

MAX_NAMED = 20  # drafters in a sentence
DEFAULT_STEP_US = 2000.0  # of a drafter that did not say: a 0.1B model's on one core


@dataclass(slots=True)
class DrafterPeer:
    peer: bytes  # routing id
    hello: Hello
    pace: DrafterPace
    last_seen: float  # seconds on the caller's clock
    who: bytes | str  # the key that it came with; its name, where there are none or where the key is trusted
    standings: Standings
    clock: PeerClock = field(default_factory=PeerClock)
    silent_until: float = 0.0  # it said that it computes until then
    reserve: bool = False  # an operator moved its leases to another: it is used while no other is there
    draining: bool = False  # it was asked to leave
    leases: set[str] = field(default_factory=set)
    drafted: int = 0
    accepted: int = 0
    dropped: int = 0
    asked: int = 0  # times, what it would have drafted for a stream of another
    compared: int = 0  # places of those streams at which both had a first choice
    right: int = 0  # of those
    others_right: int = 0  # of those the first choices of the drafters that had the streams
    version: int = 0  # of the weights that its new leases get
    trouble: str = ""  # why that is not the one that it was told to load
    told: str | None = None  # the directory of the latter; None: it has not said
    shadow_after: float = 0.0  # seconds: it is asked what it would have drafted for another's stream no sooner
    _asked: bool = False  # the verifier waits for a message of its
    _declined: dict[str, float] = field(default_factory=dict)  # requests that it is not offered before that time

    def heard(self, now: float, busy_s: float = 0.0) -> None:
        """It is alive, and for so long it will not be heard of: what else it says then takes nothing of that back."""
        self.last_seen, self.silent_until = now, max(self.silent_until, now + busy_s)

    @property
    def actor_id(self) -> str:
        return self.hello.actor_id

    def holds(self, length: int) -> bool:
        """Whether a text of that many tokens leaves its model room for a draft; a proposer has no limit."""
        return not self.hello.max_context or length < self.hello.max_context

    def takes(self, request: Request, now: float) -> bool:
        """Whether it may be lent that: it does not lose, and has room as far as is known."""
        if self.standing(request).paused:
            return False
        return self.holds(len(request.spec.committed)) and now >= self._declined.get(request.rid, 0.0)

    def standing(self, request: Request) -> Standing:
        return self.standings.of(self.who, request.kind)

    def lent(self, rid: str) -> None:
        self.leases.add(rid)
        self._declined.pop(rid, None)

    def returned(self, rid: str) -> None:
        self.leases.discard(rid)

    def declined(self, rid: str, until: float) -> None:
        self._declined[rid] = until

    def has_room_again(self) -> bool:
        """A lease has ended: what it declined for want of room it may take now. Whether there was any such."""
        lasting = {rid: until for rid, until in self._declined.items() if math.isinf(until)}
        changed = len(lasting) < len(self._declined)
        self._declined = lasting
        return changed

    def forget(self, rid: str) -> None:
        self._declined.pop(rid, None)

    def dated(self, message: Grow, arrived_us: float) -> list[tuple[int, int]]:
        """The message's forwards as (start, length) on our clock, in microseconds: it tells them by its own."""
        self.clock.heard(message.sent_us, arrived_us)
        sent = self.clock.own(message.sent_us)
        return [(max(0, round(sent - age)), length) for age, length in message.forwards]

    def ask(self) -> None:
        """The verifier wants a message of it."""
        self._asked = True

    def answers(self) -> bool:
        """Whether a message of its was asked for; that one is not asked for any more."""
        asked, self._asked = self._asked, False
        return asked

    def fenced(self) -> None:
        """A message of its was dropped."""
        self.dropped += 1

    def loads(self, model_id: str) -> bool:
        """Whether it can be told to serve with other weights of that model."""
        return self.hello.loads and self.hello.model_id == model_id

    def serves(self, version: int, trouble: str, told: str | None = None) -> None:
        """``told``: the directory that it was last told to load from; None: it does not say."""
        self.version, self.trouble, self.told = version, trouble, told

    def leave(self) -> None:
        """It is asked to leave, and lent nothing more."""
        self.draining = True

    def credit(self, drafted: int, accepted: int) -> None:
        self.drafted += drafted
        self.accepted += accepted

    def answered(self, compared: int, right: int, others_right: int) -> None:
        """What it would have drafted for another's stream."""
        self.asked += 1
        self.compared += compared
        self.right += right
        self.others_right += others_right

    def status(self, promoted: Promote | None) -> DrafterStatus:
        serves_it = promoted is not None and 0 < promoted.version == self.version
        known = self.standings.all_of(self.who)
        if self.draining:
            state = "draining"
        elif self.leases:
            state = "active"
        else:
            state = "paused" if any(one.paused for one in known) else "standby"
        latest = max(known, key=lambda one: one.speedup.weight, default=Standing())
        return DrafterStatus(
            actor_id=self.actor_id,
            model_id=self.hello.model_id,
            state=state,
            leases=len(self.leases),
            step_us=self.pace.step_us,
            drafted=self.drafted,
            accepted=self.accepted,
            dropped=self.dropped,
            host=self.hello.host,
            pid=self.hello.pid,
            speedup=latest.speedup.mean if latest.speedup.known else 0.0,
            tokens_per_second=latest.rate.mean,
            version=self.version,
            gain=promoted.gain if promoted is not None and serves_it else 0.0,
            trouble=self.trouble,
            asked=self.asked,
            compared=self.compared,
            right=self.right,
            others_right=self.others_right,
        )


class Drafters:
    """The registry: keyed by routing id, with one entry per actor id."""

    def __init__(self) -> None:
        self.by_peer: dict[bytes, DrafterPeer] = {}
        self.standings = Standings()

    def add(self, peer: bytes, hello: Hello, now: float, key: bytes = b"") -> DrafterPeer:
        """``key``: that it came with, if it is to be known by that and not by the name that it gives itself."""
        who = key or hello.actor_id
        pace = DrafterPace(CostModel({1: hello.step_us or DEFAULT_STEP_US}))
        drafter = DrafterPeer(peer, hello, pace, now, who, self.standings)
        self.by_peer[peer] = drafter
        return drafter

    def remove(self, peer: bytes) -> DrafterPeer | None:
        return self.by_peer.pop(peer, None)

    def of(self, peer: bytes | None) -> DrafterPeer | None:
        """The drafter that a request is lent to."""
        return self.by_peer.get(peer) if peer is not None else None

    def named(self, actor_id: str) -> DrafterPeer | None:
        return next((d for d in self.by_peer.values() if d.actor_id == actor_id), None)

    def able(self, request: Request, now: float) -> list[DrafterPeer]:
        """Who may take that request. One in reserve only if no other does, one that was asked to leave never."""
        able = [d for d in self.by_peer.values() if not d.draining and d.takes(request, now)]
        return [d for d in able if not d.reserve] or able

    def forget(self, rid: str) -> None:
        """That request has ended."""
        for drafter in self.by_peer.values():
            drafter.forget(rid)

    def swap(self, old: DrafterPeer, new: DrafterPeer) -> None:
        """``new`` is to be used instead of ``old``, which stays in reserve."""
        old.reserve = True
        new.reserve = new.draining = False
        for standing in self.standings.all_of(new.who):
            standing.pardon()

    def names(self) -> str:
        names = sorted(d.actor_id for d in self.by_peer.values())
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return ", ".join(names[:MAX_NAMED]) + more if names else "none"
