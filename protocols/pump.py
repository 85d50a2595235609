"""Plain ZeroMQ sockets driven by the event loop, at two thirds of the latency of ``zmq.asyncio``.

A socket's file descriptor is edge-triggered: it signals that something has changed, not that there is a message. So all
messages are read when it fires, and ``EVENTS`` is looked at again after each send, which can consume the signal
(zmq_getsockopt(3), ZMQ_FD).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

from protocols.transport import Backlog
from protocols.wire import FRAMES

# as plain integers, because operators on pyzmq's enumerations take as long as a call into libzmq
_NOW, _NOW_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_READABLE, _WRITABLE = int(zmq.POLLIN), int(zmq.POLLOUT)

BURST = 256  # messages read before other tasks of the loop have a turn

Socket = zmq.Socket[bytes]


class Unwanted:
    """Connections of a ROUTER to end: each is ended when its next message is read, which names its descriptor."""

    MOST = 1024  # who leaves by itself sends nothing more, and is forgotten with the others

    def __init__(self, hang_up: Callable[[int], None]) -> None:
        self.ids = set[bytes]()
        self._hang_up = hang_up

    def add(self, peer: bytes) -> None:
        if len(self.ids) == self.MOST:
            self.ids.clear()
        self.ids.add(peer)

    def read(self, peer: bytes, frame: zmq.Frame) -> None:
        if peer in self.ids:
            self.ids.remove(peer)
            self._hang_up(int(frame.get(zmq.SRCFD)))


def receive_frames(
    socket: Socket, most: int = FRAMES + 2, keyed: bool = False, unwanted: Unwanted | None = None
) -> list[bytes] | None:
    """Return the next message, or None. Of its frames only the first ``most`` are kept, to bound its memory.

    The default is one more than a well-formed message with a routing id has. ``keyed``: the socket is a ROUTER that
    uses CURVE; the public key that libzmq has authenticated, in Z85, is appended to the routing id.
    """
    leaving = unwanted if unwanted is not None and unwanted.ids else None
    try:
        first = socket.recv(_NOW, copy=not keyed and leaving is None)
    except zmq.Again:
        return None
    if isinstance(first, bytes):
        frames = [first]
    else:
        frames = [first.bytes + str(first.get("User-Id")).encode() if keyed else first.bytes]
        if leaving is not None:
            leaving.read(frames[0], first)
    while socket.get(zmq.RCVMORE):
        frame = socket.recv(_NOW)
        if len(frames) < most:
            frames.append(frame)
    return frames


def send_frames(socket: Socket, frames: Sequence[bytes]) -> bool:
    """Queue a message. Returns False if its receiver is gone or the queue is full."""
    if socket.closed:
        return False
    try:
        for frame in frames[:-1]:
            socket.send(frame, _NOW_MORE)
        socket.send(frames[-1], _NOW)
    except zmq.Again:
        return False
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False
    return True


class Pump:
    """Moves messages from one socket into a bounded inbox, and stops reading while that is full, so that libzmq holds
    its peers back."""

    def __init__(
        self, socket: Socket, inbox: Backlog[list[bytes]], keyed: bool = False, unwanted: Unwanted | None = None
    ) -> None:
        """``keyed``, ``unwanted``: see :func:`receive_frames`."""
        self.socket, self.keyed, self._unwanted = socket, keyed, unwanted
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._reading = False  # the event loop watches the descriptor
        self._scheduled = False  # ``_drain`` will be called in the next turn
        self._changed = asyncio.Event()  # whether a message can be sent may have changed
        self._absent = False  # the last attempt to connect found no listener
        self._resume()

    def _resume(self) -> None:
        self._loop.add_reader(self._descriptor, self._drain)
        self._reading = True
        self._schedule()

    def _pause(self) -> None:
        # without a reader the descriptor would wake the event loop again and again
        if self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False

    def _schedule(self) -> None:
        if self._reading and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        if self.socket.closed:
            return
        for _ in range(BURST):
            if self._inbox.full:
                self._pause()
                return
            # asking first takes a tenth of what an exception for an empty socket takes
            readable = int(self.socket.get(zmq.EVENTS)) & _READABLE
            frames = receive_frames(self.socket, keyed=self.keyed, unwanted=self._unwanted) if readable else None
            if frames is None:
                self._changed.set()
                return
            self._inbox.put(frames)
        self._schedule()

    def _events(self) -> int:
        """The socket's events. To look at them may consume the descriptor's signal, so reading is scheduled if due."""
        events = int(self.socket.get(zmq.EVENTS))
        if events & _READABLE:
            self._schedule()
        return events

    def send(self, frames: Sequence[bytes]) -> bool:
        sent = send_frames(self.socket, frames)
        if not self.socket.closed:
            self._events()
        return sent

    async def receive(self) -> list[bytes]:
        frames = await self._inbox.get()
        self._make_room()
        return frames

    def receive_nowait(self) -> list[bytes] | None:
        if not len(self._inbox):
            self._drain()
        frames = self._inbox.get_nowait()
        self._make_room()
        return frames

    def _make_room(self) -> None:
        if not self._reading and not self.socket.closed and self._inbox.half_empty:
            self._resume()

    def found(self, somebody: bool) -> None:
        """The result of the last attempt to connect."""
        self._absent = not somebody
        self._changed.set()

    async def writable(self, absence: Exception | None = None) -> None:
        """Wait until a message can be queued. Raises ConnectionLost once closed; and ``absence``, if given, as soon as
        the other end has no listener."""
        while not self._inbox.closed and not self._events() & _WRITABLE:
            if self._absent and absence is not None:
                raise absence
            self._changed.clear()
            await self._changed.wait()
        self._inbox.raise_if_closed()

    @property
    def closed(self) -> bool:
        return bool(self.socket.closed)

    def close(self, reason: str) -> None:
        if not self.socket.closed:
            self._pause()
            self.socket.close()
        self.fail(reason)

    def fail(self, reason: str) -> None:
        """Readers get what has arrived, then ConnectionLost."""
        self._inbox.close(reason)
        self._changed.set()


class Service:
    """Calls ``handle`` with each message of an inproc socket of libzmq's own, such as a socket monitor."""

    def __init__(self, socket: Socket, handle: Callable[[list[bytes]], None]) -> None:
        self.socket = socket
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._loop.add_reader(self._descriptor, self._drain)
        self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        while not self.socket.closed and (frames := receive_frames(self.socket, most=32)) is not None:
            self._handle(frames)

    def close(self) -> None:
        if not self.socket.closed:
            self._loop.remove_reader(self._descriptor)
            self.socket.close(0)
