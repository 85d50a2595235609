"""Connected processes, and the drafters among them with their leases. Pure bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.cost import UNKNOWN, Curve
from actors.models import KeptStates
from actors.verifier.waits import DrafterPace
from protocols.messages import ActorStatus, DraftStats, Grow, Hello
from protocols.security import ANYBODY, Holder, KeyRole

NOT_SAID = DraftStats("", (), 0.0)
MAX_NAMED = 20  # drafters in a sentence, or in a stream's statistics
DRIFT = 1e-4  # drift between two quartz clocks: some 100 parts per million


@dataclass(slots=True)
class PeerClock:
    """Another process's clock in terms of our own, in microseconds.

    No message arrives before it was sent, so the least difference between arrival and sending is the clocks' own, but
    for the quickest delivery (0.1 ms between processes of one machine). Messages that waited behind a forward differ
    more, and say nothing."""

    offset: float | None = None
    heard_at: float = 0.0

    def sent(self, sent_us: float, now_us: float) -> float:
        """When a message that arrives at ``now_us`` was sent, on our clock; ``sent_us``: on the peer's."""
        difference = now_us - sent_us
        if self.offset is None or difference <= self.offset + DRIFT * (now_us - self.heard_at):
            self.offset, self.heard_at = difference, now_us
        return sent_us + self.offset


@dataclass(slots=True)
class Peer:
    """A connected process: a client, a drafter, the controller or the learner."""

    peer: bytes  # routing id
    hello: Hello
    last_seen: float  # seconds
    holder: Holder = ANYBODY  # owner of the key that it connected with
    silent_until: float = 0.0  # seconds: a drafter said that it computes until then

    @property
    def actor_id(self) -> str:
        return self.hello.actor_id

    @property
    def operates(self) -> bool:
        """Whether it may swap and drain drafters, and see everybody's requests."""
        return self.holder.may_be(KeyRole.OPERATOR)

    @property
    def account(self) -> bytes:
        """Who pays for its messages, see :meth:`Holder.account`."""
        return self.holder.account(self.peer)

    def same_as(self, other: Peer) -> bool:
        """Whether both are one process, by two connections."""
        return (self.actor_id, self.holder.key) == (other.actor_id, other.holder.key)

    def report(self) -> ActorStatus:
        return ActorStatus(self.actor_id, self.hello.host, self.hello.pid)


@dataclass(slots=True)
class DrafterPeer(Peer):
    pace: DrafterPace = field(init=False)
    clock: PeerClock = field(default_factory=PeerClock)
    reserve: bool = False  # an operator moved its leases to another: it is used while no other is there
    draining: bool = False  # it was asked to leave
    leases: int = 0  # streams that it is lent; their loans count them
    dropped: int = 0  # messages that were fenced off
    said: DraftStats = NOT_SAID  # its last report: the weights that new leases get
    states: KeptStates | None = None  # what its head reads of the target

    def __post_init__(self) -> None:
        self.pace = DrafterPace(Curve({1: self.hello.step_us}) if self.hello.step_us else UNKNOWN)

    @property
    def source(self) -> str:
        """Its name among the sources that are judged: not of its connection, or a bad one would say Hello again."""
        return f"drafter {self.actor_id if self.account == self.peer else self.account.hex()}"

    def holds(self, length: int) -> bool:
        """Whether a text of ``length`` tokens leaves its model room for a draft; a proposer has no limit."""
        return not self.hello.max_context or length < self.hello.max_context

    def dated(self, message: Grow, arrived_us: float) -> list[tuple[int, int]]:
        """The message's forwards as (start, length) on our clock, in microseconds: it tells them by its own."""
        sent = self.clock.sent(message.sent_us, arrived_us)
        return [(max(0, round(sent - age)), length) for age, length in message.forwards]

    def reported(self, message: DraftStats) -> None:
        self.said = message
        self.pace.measured(message.step_us)

    def fenced(self) -> None:
        """A message of its was dropped."""
        self.dropped += 1

    def loads(self, model_id: str) -> bool:
        """Whether it can serve with other weights of the model."""
        return self.hello.loads and self.hello.model_id == model_id

    def leave(self) -> None:
        """Ask it to leave, and lend it nothing more."""
        self.draining = True


class Drafters:
    """The registry: keyed by routing id, with one entry per actor id."""

    def __init__(self) -> None:
        self.by_peer: dict[bytes, DrafterPeer] = {}

    def named(self, actor_id: str) -> DrafterPeer | None:
        return next((d for d in self.by_peer.values() if d.actor_id == actor_id), None)

    def swap(self, old: DrafterPeer, new: DrafterPeer) -> None:
        """``new`` is to be used instead of ``old``, which stays in reserve."""
        old.reserve = True
        new.reserve = new.draining = False

    def names(self) -> str:
        names = sorted(d.actor_id for d in self.by_peer.values())
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return ", ".join(names[:MAX_NAMED]) + more if names else "none"
