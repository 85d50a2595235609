"""A network inside one process that loses, repeats, reorders and delays messages, and kills hosts, by a seed.

Delays count turns of the event loop, or are seconds by host. The fate of a link's n-th faulty message in one direction
depends on the seed, on the link's number and on n, so a run can be repeated even where actors compute in threads.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from protocols.errors import ConfigError, ConnectionLost
from protocols.security import ANYBODY, Holder
from protocols.transport import INBOX, Backlog, nobody_at
from protocols.wire import kind
from tests.world.clock import now_here

CLOSED = "the connection was closed on this side"
OVERTAKEN = 4  # turns at most that a reordered message comes late


def only(*kinds: str) -> Callable[[Sequence[bytes]], bool]:
    """Return a predicate for ``faulty``: messages of these classes, such as ``only("Grow", "Verdict")``."""
    return lambda frames: kind(frames) in kinds


@dataclass(frozen=True)
class Faults:
    """Probabilities per message; ``delay`` is the most turns that a message waits."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: int = 0


class MemoryListener:
    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self.address = address
        self.telemetry = address + ".telemetry"
        self.inbox: Backlog[tuple[bytes, list[bytes]]] = Backlog(INBOX)
        self.peers: dict[bytes, MemoryLink] = {}
        self._network = network

    async def receive(self) -> tuple[bytes, list[bytes]]:
        return await self.inbox.get()

    def receive_nowait(self) -> tuple[bytes, list[bytes]] | None:
        return self.inbox.get_nowait()

    def holder(self, peer: bytes) -> Holder:
        link = self.peers.get(peer)
        return self._network.holders.get(link.host if link is not None else "", ANYBODY)

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        link = self.peers.get(peer)
        if link is None or link.inbox.full:
            return False
        copy = list(frames)
        link.downstream.carry(copy, lambda: link.peer == peer and link.inbox.put(list(copy)))
        return True

    def hang_up(self, peer: bytes) -> None:
        if (link := self.peers.get(peer)) is not None:
            link.detach()
            self._network.attach(link)  # who wants to be here connects again

    @property
    def watched(self) -> bool:
        return any(feed.address == self.telemetry for feed in self._network.feeds)

    def publish(self, topic: bytes, frames: Sequence[bytes]) -> None:
        for feed in self._network.feeds:
            if feed.address == self.telemetry and topic.startswith(feed.topics):
                feed.inbox.put(list(frames))

    def close(self) -> None:
        if self._network.listeners.pop(self.address, None) is self:
            for link in list(self.peers.values()):
                link.detach()
        self.inbox.close(CLOSED)


class MemoryLink:
    def __init__(self, network: MemoryNetwork, address: str, host: str, number: int) -> None:
        self.address = address
        self.host = host
        self.inbox: Backlog[list[bytes]] = Backlog(INBOX)
        self.peer = b""  # the connection's id at the listener; empty: not connected
        self.dead = False
        self.partitioned = False
        self.upstream = _Direction(network, self, f"{number} up")
        self.downstream = _Direction(network, self, f"{number} down")
        self._network = network
        self._listener: MemoryListener | None = None
        self._changed = asyncio.Event()

    def attach(self, listener: MemoryListener, peer: bytes) -> None:
        self._listener, self.peer = listener, peer
        listener.peers[peer] = self
        self._changed.set()

    def detach(self) -> None:
        if self._listener is not None:
            self._listener.peers.pop(self.peer, None)
        self._listener, self.peer = None, b""

    async def writable(self, wait: bool = True) -> None:
        while not self.peer:
            if not wait:
                raise nobody_at(self.address)
            if self.inbox.closed:
                raise ConnectionLost(CLOSED)
            self._changed.clear()
            await self._changed.wait()

    async def receive(self) -> list[bytes]:
        return await self.inbox.get()

    def receive_nowait(self) -> list[bytes] | None:
        return self.inbox.get_nowait()

    def send(self, frames: Sequence[bytes]) -> bool:
        listener, peer = self._listener, self.peer
        if listener is None or listener.inbox.full:
            return False
        copy = list(frames)
        self.upstream.carry(copy, lambda: listener.inbox.put((peer, list(copy))))
        return True

    def close(self) -> None:
        self.detach()
        self.inbox.close(CLOSED)
        self._changed.set()
        if self in self._network.links:
            self._network.links.remove(self)


class MemoryFeed:
    def __init__(self, network: MemoryNetwork, address: str, topics: Sequence[bytes]) -> None:
        self.address = address
        self.topics = tuple(topics)
        self.inbox: Backlog[list[bytes]] = Backlog(INBOX)
        self._network = network

    async def receive(self) -> list[bytes]:
        return await self.inbox.get()

    def close(self) -> None:
        self.inbox.close(CLOSED)
        if self in self._network.feeds:
            self._network.feeds.remove(self)


class _Direction:
    """One way along one link: decides each message's fate, and keeps the order of those that are merely late."""

    def __init__(self, network: MemoryNetwork, link: MemoryLink, name: str) -> None:
        self._network = network
        self._link = link
        self._random = random.Random(f"{network.seed} {name}")
        self._last = 0  # turn in which the latest message that kept its place arrives

    def carry(self, frames: list[bytes], deliver: Callable[[], object]) -> None:
        if self._link.partitioned:
            return
        faults = self._network.faults_of(frames)
        if faults is None:
            self._network.deliver(self._keep_place(0), self._link, deliver)
            return
        # always the same number of draws: one setting does not shift the fates that another deals
        drop, duplicate, reorder, late, overtaken = (self._random.random() for _ in range(5))
        if drop < faults.drop:
            return
        copies = 2 if duplicate < faults.duplicate else 1
        for _ in range(copies):
            if reorder < faults.reorder:
                turn = max(self._last, self._network.turn) + 1 + int(overtaken * OVERTAKEN)
            else:
                turn = self._keep_place(int(late * (faults.delay + 1)))
            self._network.deliver(turn, self._link, deliver)

    def _keep_place(self, late: int) -> int:
        self._last = max(self._last, self._network.turn + late)
        return self._last


class MemoryNetwork:
    """See :class:`protocols.transport.Network`. Faults meet the messages that ``faulty`` is true of (default: all).

    Telemetry is not subject to faults. Actors that a test wants to kill by name get ``network.host(name)``.
    """

    def __init__(
        self,
        seed: int = 0,
        drop: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        delay: int = 0,
        faulty: Callable[[Sequence[bytes]], bool] = lambda frames: True,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """``seconds``: that messages to and from a host take; with it, what a computing process sends waits for the
        end of its step."""
        self.seed = seed
        self.faults = Faults(drop, duplicate, reorder, delay)
        self.faulty = faulty
        self._turn = 0
        self.listeners: dict[str, MemoryListener] = {}
        self.links: list[MemoryLink] = []
        self.holders: dict[str, Holder] = {}  # by host: with whose key it comes
        self.feeds: list[MemoryFeed] = []
        self._late: list[tuple[int, int, MemoryLink, Callable[[], object]]] = []
        self._sent = 0
        self._made = 0
        self._connections = 0
        self._seconds = seconds
        self._arrives: dict[str, float] = {}  # by host, the latest message under way

    def listen(self, address: str) -> MemoryListener:
        if address in self.listeners:
            raise ConfigError(
                f"address {address} is in use: is another verifier up? Stop it, or choose another --bind."
            )
        listener = self.listeners[address] = MemoryListener(self, address)
        for link in self.links:
            self.attach(link)
        return listener

    def connect(self, address: str, host: str = "") -> MemoryLink:
        link = MemoryLink(self, address, host, self._made)
        self._made += 1
        self.links.append(link)
        self.attach(link)
        return link

    def subscribe(self, address: str, topics: Sequence[bytes] = (b"",)) -> MemoryFeed:
        feed = MemoryFeed(self, address, topics)
        self.feeds.append(feed)
        return feed

    def host(self, name: str) -> MemoryHost:
        """Return a view of this network for one actor; its links can then be killed or partitioned by name."""
        return MemoryHost(self, name)

    def kill(self, target: MemoryLink | str) -> None:
        """The peer, or every link of a host, is gone as after ``kill -9``: what is under way vanishes, and sending to
        it returns False. It hears nothing more, not even that."""
        for link in self._select(target):
            link.dead = True
            link.detach()
            self.links.remove(link)

    def partition(self, target: MemoryLink | str) -> None:
        """The cable is cut: messages vanish both ways and nobody is told; sending still returns True."""
        for link in self._select(target):
            link.partitioned = True

    def heal(self, target: MemoryLink | str) -> None:
        """Undo ``partition``; what was lost stays lost."""
        for link in self._select(target):
            link.partitioned = False

    def close(self) -> None:
        ends: list[MemoryListener | MemoryLink | MemoryFeed] = [*self.listeners.values(), *self.links, *self.feeds]
        for end in ends:
            end.close()

    @property
    def turn(self) -> int:
        return self._turn

    def faults_of(self, frames: Sequence[bytes]) -> Faults | None:
        """What may happen to this message; None: nothing."""
        return self.faults if self.faulty(frames) else None

    def deliver(self, turn: int, link: MemoryLink, action: Callable[[], object]) -> None:
        """Run ``action`` in the given turn, at once if that is now; never if ``link`` is dead or cut by then."""
        if self._seconds is not None:
            self._send_late(link, action)
            return
        if turn <= self.turn:
            action()
            return
        if not self._late:
            asyncio.get_running_loop().call_soon(self._tick)
        self._sent += 1
        heapq.heappush(self._late, (turn, self._sent, link, action))

    def _send_late(self, link: MemoryLink, action: Callable[[], object]) -> None:
        """After the host's seconds, in the order of sending."""
        assert self._seconds is not None
        loop = asyncio.get_running_loop()
        arrives = max(now_here() + self._seconds.get(link.host, 0.0), self._arrives.get(link.host, 0.0))
        if arrives <= loop.time():
            action()
            return
        self._arrives[link.host] = arrives + 1e-9
        loop.call_at(arrives, lambda: None if link.dead else action())

    def _tick(self) -> None:
        self._turn += 1
        while self._late and self._late[0][0] <= self.turn:
            _, _, link, action = heapq.heappop(self._late)
            if not link.dead and not link.partitioned:
                action()
        if self._late:
            asyncio.get_running_loop().call_soon(self._tick)

    def _select(self, target: MemoryLink | str) -> list[MemoryLink]:
        return [link for link in self.links if link is target or link.host == target]

    def attach(self, link: MemoryLink) -> None:
        listener = self.listeners.get(link.address)
        if listener is not None:
            self._connections += 1
            link.attach(listener, b"\0" + self._connections.to_bytes(4, "big"))


@dataclass(frozen=True)
class MemoryHost:
    """A :class:`MemoryNetwork` as one machine or process sees it."""

    network: MemoryNetwork
    name: str

    def listen(self, address: str) -> MemoryListener:
        return self.network.listen(address)

    def connect(self, address: str) -> MemoryLink:
        return self.network.connect(address, self.name)

    def subscribe(self, address: str, topics: Sequence[bytes] = (b"",)) -> MemoryFeed:
        return self.network.subscribe(address, topics)

    def close(self) -> None:
        for link in [link for link in self.network.links if link.host == self.name]:
            link.close()
