"""A peer's side of its connection, as a state machine: sections 6.1 and 8 of ``SPEC.md``. No sockets, no clock.

Drafters, controllers and clients all drive this one (:class:`actors.peer.Line` does it for them): ``tick`` when it is
due, ``receive`` with every message. Times are seconds on any clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from protocols.errors import RefusedError
from protocols.messages import Drain, Goodbye, Heartbeat, Hello, Message, Refuse, RefuseCode, Role, Welcome

TRIPS = 16  # heartbeats that a message's delay is judged by
MAX_BUSY_MS = 60_000.0  # see limits.BusyMilliseconds
GREET_S = 0.5  # between two Hellos to a verifier that has not answered yet
# A verifier believes a dead peer alive for two heartbeats, and refuses its successor. Restarted ones come in 0.6 s.
NAMESAKE_S = 2.0


class Why(StrEnum):
    SILENT = "silent"  # nothing was heard for ttl_ms
    FORGOTTEN = "forgotten"  # it restarted, or took this peer for dead
    DRAINING = "draining"  # it shuts down


@dataclass(frozen=True, slots=True)
class Lost:
    """The verifier knows nothing of this peer any more: what it lent is void, and what was asked must be asked again
    after its next Welcome."""

    why: Why


@dataclass(frozen=True, slots=True)
class Step:
    """What an event led to. ``news`` is for the peer itself: a message, or the loss of the verifier. A ``Welcome``
    among the news begins a new acquaintance; one that only repeats the last is no news."""

    send: Message | None = None
    news: Message | Lost | None = None


class Handshake:
    """Says Hello until it is welcomed, then heartbeats; notices that the verifier is silent, gone, new or forgetful."""

    def __init__(self, hello: Hello, now: float) -> None:
        self.hello = hello
        self.welcome: Welcome | None = None  # the newest
        self.known = False  # whether the verifier knows us
        self.due = now  # when ``tick`` has something to do
        self._heard_at = now
        self._asked_at: float | None = None  # when what is not answered yet was said
        self._refused_at: float | None = None  # for a namesake, first
        self._trips: deque[float] = deque(maxlen=TRIPS)

    @property
    def round_trip_s(self) -> float:
        """A message there and its answer: the shortest of late, since some wait until the verifier's forward ends."""
        return min(self._trips, default=0.0)

    def tick(self, now: float) -> Step:
        """Call it at ``due``; before that it does nothing."""
        if now < self.due:
            return Step()
        # While this process did not run (a long computation, a suspended laptop) messages lay unread: that time is not
        # the verifier's silence.
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
        """For so long this peer will compute, and hear and say nothing. Only a drafter is waited for."""
        return Step(Heartbeat(min(1000 * seconds, MAX_BUSY_MS))) if self.known else Step()

    def receive(self, message: Message, now: float) -> Step:
        """Raises RefusedError with the verifier's sentence when it does not want this peer."""
        self._heard_at = now
        match message:
            case Welcome():
                return self._welcomed(message, now)
            case Heartbeat():
                self._answered(now)
                return Step()
            case Refuse(code=RefuseCode.UNKNOWN_PEER):
                # Only the first of several is answered: each message sent before it was read led to one more.
                return Step(self._greet(now).send, self._lose(Why.FORGOTTEN)) if self.known else Step()
            case Refuse(code=RefuseCode.DRAINING):
                self.due = min(self.due, now + GREET_S)  # a successor may come
                return Step(news=self._lose(Why.DRAINING))
            case Refuse(code=RefuseCode.MALFORMED) if self.welcome is not None:
                return Step(news=message)  # about one message, not about the peer
            case Refuse(code=RefuseCode.DUPLICATE) if self._may_be_dead(now):
                return Step()  # Hello again
            case Refuse():
                raise RefusedError(message.code, message.detail)
            case Drain() if self.hello.role is Role.CLIENT:
                self.due = now + GREET_S
                return Step(Goodbye("drained"), self._lose(Why.DRAINING))  # the verifier waits for it
        return Step(news=message)

    def _may_be_dead(self, now: float) -> bool:
        """Whether a peer for which this one was refused may be its own dead predecessor."""
        if self._refused_at is None:
            self._refused_at = now
        return now - self._refused_at < NAMESAKE_S

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
