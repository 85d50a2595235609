"""Who the drafters are, which requests they are lent, and who gets the next one. Pure bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.verifier.peer_clock import PeerClock
from actors.verifier.waiting import DrafterPace
from protocols.messages import DrafterStatus, Hello


@dataclass(slots=True)
class DrafterPeer:
    peer: bytes  # routing id
    hello: Hello
    pace: DrafterPace
    last_seen: float  # seconds on the caller's clock
    clock: PeerClock = field(default_factory=PeerClock)
    draining: bool = False
    leases: set[str] = field(default_factory=set)
    drafted: int = 0
    accepted: int = 0
    dropped: int = 0

    @property
    def actor_id(self) -> str:
        return self.hello.actor_id

    def status(self, now: float) -> DrafterStatus:
        state = "draining" if self.draining else "active" if self.leases else "standby"
        return DrafterStatus(
            actor_id=self.actor_id,
            model_id=self.hello.model_id,
            state=state,
            leases=len(self.leases),
            step_us=self.pace.step_us,
            drafted=self.drafted,
            accepted=self.accepted,
            dropped=self.dropped,
            last_seen_ms=(now - self.last_seen) * 1000,
            host=self.hello.host,
            pid=self.hello.pid,
        )


class Drafters:
    """The registry: keyed by routing id, with one entry per actor id."""

    def __init__(self) -> None:
        self.by_peer: dict[bytes, DrafterPeer] = {}

    def add(self, peer: bytes, hello: Hello, now: float) -> DrafterPeer:
        drafter = DrafterPeer(peer, hello, DrafterPace(hello.step_us or 2000.0), now)
        self.by_peer[peer] = drafter
        return drafter

    def remove(self, peer: bytes) -> DrafterPeer | None:
        return self.by_peer.pop(peer, None)

    def of(self, peer: bytes | None) -> DrafterPeer | None:
        """The drafter that a request is lent to."""
        return self.by_peer.get(peer) if peer is not None else None

    def named(self, actor_id: str) -> DrafterPeer | None:
        return next((d for d in self.by_peer.values() if d.actor_id == actor_id), None)

    def choose(self, excluding: bytes | None = None) -> DrafterPeer | None:
        """The least burdened drafter that takes new leases; among equals the fastest."""
        able = [d for d in self.by_peer.values() if not d.draining and d.peer != excluding]
        return min(able, key=lambda d: (len(d.leases), d.pace.step_us), default=None)

    def expired(self, now: float, ttl: float) -> list[DrafterPeer]:
        return [d for d in self.by_peer.values() if now - d.last_seen > ttl]

    def names(self) -> str:
        return ", ".join(sorted(d.actor_id for d in self.by_peer.values())) or "none"
