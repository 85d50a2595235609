"""The verifier's state: every stream, drafter, client, budget and counter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from msgspec.structs import replace

from actors.verifier.drafters import Drafters, Peer
from actors.verifier.owners import Owner
from actors.verifier.streams import Stream, Streams
from actors.verifier.totals import Totals
from protocols.limits import MAX_BUDGETS
from protocols.messages import Budget, Kind, Promote, Role

# Peers say something every HEARTBEAT_MS; a peer silent for TTL_MS is taken for dead.
HEARTBEAT_MS = 500
TTL_MS = 5 * HEARTBEAT_MS

EVERY = Kind()
UNSET = Budget(0, 0)


class Budgets:
    """The controller's latest budget for each method and drafter, while it lives. ``now``: seconds."""

    def __init__(self) -> None:
        self._said: dict[Kind, tuple[Budget, float]] = {}  # budgets and the seconds at which they end

    def file(self, budget: Budget, now: float) -> None:
        """Take the controller's budget. Beyond ``MAX_BUDGETS`` the oldest are forgotten."""
        self._said = {kind: one for kind, one in self._said.items() if now < one[1] and kind != budget.kind}
        while len(self._said) >= MAX_BUDGETS:
            del self._said[next(iter(self._said))]
        self._said[budget.kind] = (budget, now + budget.ttl_ms / 1000)

    def forget(self) -> None:
        """The controller is gone, and its budgets with it."""
        self._said.clear()

    def said(self, now: float) -> tuple[Budget, ...]:
        """The controller's budgets that are in force."""
        return tuple(budget for budget, until in self._said.values() if now < until)

    def of(self, kind: Kind, now: float) -> Budget:
        """The budget of a kind of requests."""
        for key in (kind, replace(kind, drafter=""), EVERY):
            budget, until = self._said.get(key, (UNSET, 0.0))
            if now < until:
                return budget
        return UNSET


@dataclass(slots=True)
class State:
    incarnation: str
    started: float  # seconds
    requests: Streams = field(default_factory=Streams)
    drafters: Drafters = field(default_factory=Drafters)
    clients: dict[bytes, Peer] = field(default_factory=dict)
    singles: dict[Role, Peer] = field(default_factory=dict)  # the controller and the learner
    promoted: Promote | None = None  # the weights that the learner last had the drafters serve with
    budgets: Budgets = field(default_factory=Budgets)
    counters: Counter[str] = field(default_factory=Counter)  # counts as ``StatusReport.counters`` has them
    totals: Totals = field(init=False)
    epochs: Iterator[int] = field(default_factory=partial(count, 1))  # every lease has its own
    draining: bool = False  # the verifier is shutting down

    def __post_init__(self) -> None:
        self.totals = Totals(self.counters)

    @property
    def controller(self) -> Peer | None:
        return self.singles.get(Role.CONTROLLER)

    @property
    def learner(self) -> Peer | None:
        return self.singles.get(Role.LEARNER)

    def peers(self) -> list[Peer]:
        return [*self.clients.values(), *self.drafters.by_peer.values(), *self.singles.values()]

    def peer(self, peer: bytes) -> Peer | None:
        """The process behind a connection; None: it has not said Hello, or is gone."""
        known = self.clients.get(peer) or self.drafters.by_peer.get(peer)
        return known or next((one for one in self.singles.values() if one.peer == peer), None)

    def in_order(self, streams: Iterable[Stream]) -> list[Stream]:
        """The first is served first, the last is preempted first: callers in the order in which their requests come.

        A ``priority`` exchanges the turns of one owner's requests: by a number nobody comes before requests of others.
        The exchange is kept: of a request that lets another pass, later requests of other owners come before it."""
        own: dict[Owner, list[Stream]] = defaultdict(list)
        for stream in streams:
            own[stream.owner].append(stream)
        for same in own.values():
            turns = sorted(stream.times.turn for stream in same)
            same.sort(key=lambda stream: (stream.message.priority, stream.times.arrived))
            for stream, turn in zip(same, turns, strict=True):
                stream.times.turn = turn
        return sorted((s for same in own.values() for s in same), key=lambda s: (s.times.turn, s.times.arrived))

    @property
    def drafters_idle(self) -> bool:
        """Whether no drafter has work, so that the target may use their CPUs."""
        return not any(stream.loan.works for stream in self.requests)
