"""A peer's side of its connection, as a state machine without sockets or a clock: sections 6.1 and 8 of ``SPEC.md``.

Every peer of a verifier uses it, by :class:`actors.peer.Line`, which calls ``tick`` when it is due and ``receive`` with
every message. Times are seconds on any clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from protocols.errors import RefusedError
from protocols.messages import Drain, Goodbye, Heartbeat, Hello, Message, Refuse, RefuseCode, Role, Welcome

TRIPS = 16  # latest round trips that are kept
MAX_BUSY_MS = 60_000.0  # see limits.BusyMilliseconds
GREET_S = 0.5  # between two Hellos to a verifier that has not answered
# How long a refusal that may pass is answered with another Hello: as a duplicate, because a verifier takes a dead peer
# for alive for up to two heartbeats, and refuses its successor, which a supervisor starts within 0.6 s; as malformed,
# and nonsense in place of an answer, because a frame may have been garbled on its way.
PASSING_S = 2.0


class Why(StrEnum):
    """Why the verifier is lost."""

    SILENT = "silent"  # nothing was heard for ttl_ms
    FORGOTTEN = "forgotten"  # it has restarted, or taken this peer for dead
    DRAINING = "draining"  # it shuts down


@dataclass(frozen=True, slots=True)
class Lost:
    """The verifier does not know this peer any more: leases are void, and what was asked must be asked again after the
    next Welcome."""

    why: Why


@dataclass(frozen=True, slots=True)
class Step:
    """The consequences of an event: ``send`` to the verifier, and tell the peer the ``news``.

    A Welcome is news only if the verifier did not know the peer before, or is another one."""

    send: Message | None = None
    news: Message | Lost | None = None


class Handshake:
    """Says Hello until it is welcomed, then sends heartbeats. Notices when the verifier is silent, was replaced, or has
    forgotten this peer."""

    def __init__(self, hello: Hello, now: float) -> None:
        self.hello = hello
        self.welcome: Welcome | None = None  # the latest
        self.known = False  # whether the verifier knows this peer
        self.due = now  # when to call ``tick``
        self._heard_at = now
        self._asked_at: float | None = None  # when the Hello or Heartbeat was sent that is not answered yet
        self._refused_at: float | None = None  # when it was first refused in a way that may pass
        self._trips: deque[float] = deque(maxlen=TRIPS)

    @property
    def round_trip_s(self) -> float:
        """A message to the verifier and its answer: the shortest of the latest, because some wait for a forward."""
        return min(self._trips, default=0.0)

    def tick(self, now: float) -> Step:
        """Call it at ``due``; before that it does nothing."""
        if now < self.due:
            return Step()
        # Messages lie unread while this process does not run (a long computation, a suspended laptop). That time is not
        # counted as the verifier's silence.
        self._heard_at = min(now, self._heard_at + now - self.due)
        if not self.known or self.welcome is None:
            return self._greet(now)
        if now - self._heard_at > self.welcome.ttl_ms / 1000:
            self.known = False
            return Step(self._greet(now).send, Lost(Why.SILENT))
        self.due = now + self.welcome.heartbeat_ms / 1000
        self._asked_at = now
        return Step(Heartbeat())

    def busy(self, seconds: float) -> Step:
        """Announce a computation of this length, without reading or sending meanwhile. It is only of use for a
        drafter."""
        return Step(Heartbeat(min(1000 * seconds, MAX_BUSY_MS))) if self.known else Step()

    def receive(self, message: Message, now: float) -> Step:
        """Raises RefusedError with the verifier's sentence if it refuses this peer for good."""
        self._heard_at = now
        match message:
            case Welcome():
                return self._welcomed(message, now)
            case Heartbeat():
                self._answered(now)
                return Step()
            case Refuse(code=RefuseCode.UNKNOWN_PEER):
                # only the first is answered: there is one for each message that was sent before it arrived
                return Step(self._greet(now).send, self._lose(Why.FORGOTTEN)) if self.known else Step()
            case Refuse(code=RefuseCode.DRAINING):
                self.due = min(self.due, now + GREET_S)  # a successor may come
                return Step(news=self._lose(Why.DRAINING))
            case Refuse(code=RefuseCode.MALFORMED) if self.welcome is not None:
                return Step(news=message)  # about one message, not about the peer
            case Refuse(code=RefuseCode.DUPLICATE | RefuseCode.MALFORMED) if self.may_pass(now):
                return Step()  # and say Hello again when it is due
            case Refuse():
                raise RefusedError(message.code, message.detail)
            case Drain() if self.hello.role is Role.CLIENT:
                self.due = now + GREET_S
                return Step(Goodbye("drained"), self._lose(Why.DRAINING))  # the verifier waits for it
        return Step(news=message)

    def may_pass(self, now: float) -> bool:
        """Whether a refusal, or nonsense in place of a Welcome, is so new that another Hello may be answered well."""
        if self._refused_at is None:
            self._refused_at = now
        return now - self._refused_at < PASSING_S

    def _answered(self, now: float) -> None:
        if self._asked_at is not None:
            self._trips.append(now - self._asked_at)
            self._asked_at = None

    def _greet(self, now: float) -> Step:
        self.due = now + GREET_S
        self._asked_at = now
        return Step(self.hello)

    def _lose(self, why: Why) -> Lost | None:
        known, self.known = self.known, False
        return Lost(why) if known else None

    def _welcomed(self, welcome: Welcome, now: float) -> Step:
        new = not self.known or self.welcome is None or welcome.incarnation != self.welcome.incarnation
        self._answered(now)
        self.welcome, self.known, self._refused_at = welcome, True, None
        if not new:
            return Step()
        self.due = now + welcome.heartbeat_ms / 1000
        return Step(news=welcome)
