"""One verifier and its peers on a network inside one process and in virtual time: nothing is lost, all is late."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from actors.replay.clock import now_here
from protocols.security import ANYBODY, Holder
from protocols.transport import Inbox

ADDRESS = "memory://verifier"
CLOSED = "The connection was closed on this side."


class _Way:
    """One direction of a connection: messages arrive in order, each so many seconds after it was sent."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s
        self._under_way: deque[Callable[[], object]] = deque()

    def carry(self, deliver: Callable[[], object]) -> bool:
        if self.late_s:
            self._under_way.append(deliver)
            asyncio.get_running_loop().call_at(now_here() + self.late_s, lambda: self._under_way.popleft()())
        else:
            deliver()
        return True


class MemoryListener:
    """See :class:`protocols.transport.Listener`."""

    address = ADDRESS
    telemetry = ADDRESS + ".telemetry"

    def __init__(self) -> None:
        self.inbox: Inbox[tuple[bytes, list[bytes]]] = Inbox()
        self.links: dict[bytes, MemoryLink] = {}
        self.feeds: list[MemoryFeed] = []

    async def receive(self) -> tuple[bytes, list[bytes]]:
        return await self.inbox.get()

    def receive_nowait(self) -> tuple[bytes, list[bytes]] | None:
        return self.inbox.get_nowait()

    def holder(self, peer: bytes) -> Holder:
        return ANYBODY

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        link = self.links.get(peer)
        return link is not None and link.down.carry(lambda: link.inbox.put(list(frames)))

    def publish(self, topic: bytes, frames: Sequence[bytes]) -> None:
        for feed in self.feeds:
            if topic.startswith(feed.topics):
                feed.inbox.put(list(frames))

    def close(self) -> None:
        self.inbox.close(CLOSED)


class MemoryLink:
    """See :class:`protocols.transport.Link`."""

    def __init__(self, listener: MemoryListener, peer: bytes, late_s: float) -> None:
        self.inbox: Inbox[list[bytes]] = Inbox()
        self.up, self.down = _Way(late_s), _Way(late_s)
        self._listener, self._peer = listener, peer
        listener.links[peer] = self

    async def writable(self, wait: bool = True) -> None:
        return

    async def receive(self) -> list[bytes]:
        return await self.inbox.get()

    def receive_nowait(self) -> list[bytes] | None:
        return self.inbox.get_nowait()

    def send(self, frames: Sequence[bytes]) -> bool:
        return self.up.carry(lambda: self._listener.inbox.put((self._peer, list(frames))))

    def close(self) -> None:
        self._listener.links.pop(self._peer, None)
        self.inbox.close(CLOSED)


class MemoryFeed:
    """See :class:`protocols.transport.Feed`."""

    def __init__(self, listener: MemoryListener, topics: Sequence[bytes]) -> None:
        self.topics = tuple(topics)
        self.inbox: Inbox[list[bytes]] = Inbox()
        listener.feeds.append(self)

    async def receive(self) -> list[bytes]:
        return await self.inbox.get()

    def close(self) -> None:
        self.inbox.close(CLOSED)


class MemoryNetwork:
    """See :class:`protocols.transport.Network`; of one peer, whose messages take ``late_s`` seconds either way."""

    def __init__(self, listener: MemoryListener, late_s: float = 0.0) -> None:
        self._listener, self._late_s = listener, late_s

    def listen(self, address: str) -> MemoryListener:
        return self._listener

    def connect(self, address: str) -> MemoryLink:
        peer = b"\0" + len(self._listener.links).to_bytes(4, "big")
        return MemoryLink(self._listener, peer, self._late_s)

    def subscribe(self, address: str, topics: Sequence[bytes] = (b"",)) -> MemoryFeed:
        return MemoryFeed(self._listener, topics)

    def close(self) -> None:
        return
