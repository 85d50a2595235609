"""The network as actors see it, whatever carries the bytes; ``zeromq.py`` has the implementation with real sockets.

"Frames" are always those of one message (see ``wire.py``), without routing ids and topics. All objects belong to the
event loop that runs when they are made, and must not be used from another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from protocols.errors import ConnectionLost
from protocols.security import Holder

T = TypeVar("T")

# What may wait for an actor; beyond either its peers are held back.
INBOX = 10_000  # messages
INBOX_BYTES = 16 * 1024 * 1024


def nobody_at(address: str) -> ConnectionLost:
    return ConnectionLost(f"no verifier answers at {address}; start one with `duoactor up`, or give its address")


class Listener(Protocol):
    """The verifier's end: a socket for all peers' messages, and another for telemetry."""

    @property
    def address(self) -> str:
        """The address that peers connect to, with the real port."""

    @property
    def telemetry(self) -> str:
        """The address of the publishing socket."""

    async def receive(self) -> tuple[bytes, list[bytes]]:
        """Return the id of a connection, and the next message, which came by it. Cancelling it loses nothing.

        Raises ConnectionLost once the listener is closed.
        """

    def receive_nowait(self) -> tuple[bytes, list[bytes]] | None:
        """Return the next message if one has arrived."""

    def holder(self, peer: bytes) -> Holder:
        """The authenticated key of a connection, and its roles."""

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Queue a message. Never blocks; False if the peer is gone or its queue is full."""

    def hang_up(self, peer: bytes) -> None:
        """End a connection, at the latest when it sends again."""

    @property
    def watched(self) -> bool:
        """Whether anybody is connected who may have subscribed."""

    def publish(self, topic: bytes, frames: Sequence[bytes]) -> None:
        """Send a message to the subscribers of a prefix of ``topic``. Never blocks; slow subscribers miss it."""

    def close(self) -> None:
        """Stop listening and leave no file. Messages already queued still leave."""


class Link(Protocol):
    """A peer's end: a connection to the verifier, which is made again when it breaks."""

    async def writable(self, wait: bool = True) -> None:
        """Wait until ``send`` can succeed. Raises ConnectionLost once closed, or if the verifier denies our key. With
        ``wait`` false also as soon as the address is known to have no listener."""

    async def receive(self) -> list[bytes]:
        """Return the next message. Cancelling it loses nothing. Raises ConnectionLost once closed, or denied."""

    def receive_nowait(self) -> list[bytes] | None:
        """Return the next message if one has arrived."""

    def send(self, frames: Sequence[bytes]) -> bool:
        """Queue a message. Never blocks; False if there is no connection at present or the queue is full."""

    def close(self) -> None:
        """Disconnect. Messages already queued still leave."""


class Feed(Protocol):
    """A subscription to the verifier's telemetry."""

    async def receive(self) -> list[bytes]:
        """Return the next message, without its topic. Raises ConnectionLost once closed."""

    def close(self) -> None:
        """End the subscription."""


class Network(Protocol):
    """Makes listeners, links and feeds. Raises ConfigError for addresses that cannot work."""

    def listen(self, address: str) -> Listener:
        """Bind ``address`` and a telemetry address with it."""

    def connect(self, address: str) -> Link:
        """Return at once, connected or not: the verifier may come later."""

    def subscribe(self, address: str, topics: Sequence[bytes] = (b"",)) -> Feed:
        """Subscribe to all topics that begin with one of ``topics``."""

    def close(self) -> None:
        """Close whatever is still open; waits half a second at most for the last messages to leave."""


def size_of(frames: Sequence[bytes]) -> int:
    """Bytes of a message."""
    return sum(map(len, frames))


class Backlog(Generic[T]):
    """A queue of bounded length and size; its reader can be cancelled at any time without losing an item."""

    def __init__(self, capacity: int = INBOX, size: Callable[[T], int] = lambda item: 0) -> None:
        """``size``: the bytes of an item. An item of any size is taken as long as the limit is not reached."""
        self.capacity = capacity
        self._size = size
        self._bytes = 0
        self._items: deque[T] = deque()
        self._changed = asyncio.Event()
        self._closed: str | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        return len(self._items) >= self.capacity or self._bytes >= INBOX_BYTES

    @property
    def half_empty(self) -> bool:
        return len(self._items) <= self.capacity // 2 and self._bytes <= INBOX_BYTES // 2

    def put(self, item: T) -> bool:
        """Append ``item``. Returns False if there is no room, or the inbox is closed."""
        if self.full or self._closed is not None:
            return False
        self._items.append(item)
        self._bytes += self._size(item)
        self._changed.set()
        return True

    async def get(self) -> T:
        """Return the oldest item. Raises ConnectionLost when the inbox is closed and empty."""
        # the item is taken only after the last await: a cancelled reader has taken nothing
        while not self._items:
            if self._closed is not None:
                raise ConnectionLost(self._closed)
            self._changed.clear()
            await self._changed.wait()
        return self._take()

    def get_nowait(self) -> T | None:
        return self._take() if self._items else None

    def _take(self) -> T:
        item = self._items.popleft()
        self._bytes -= self._size(item)
        return item

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def raise_if_closed(self) -> None:
        if self._closed is not None:
            raise ConnectionLost(self._closed)

    def close(self, reason: str) -> None:
        """Accept nothing more; readers get what is left, then ConnectionLost(reason)."""
        if self._closed is None:
            self._closed = reason
        self._changed.set()
