"""The three ends of connections over ZeroMQ: a verifier's, a peer's, and a telemetry subscriber's. They implement
:mod:`protocols.transport`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocols.address import Address
from protocols.doors import Doors
from protocols.pump import Pump, Service, Socket, Unwanted, send_frames
from protocols.security import ANYBODY, KEY_LENGTH, Holder
from protocols.transport import INBOX, Backlog, nobody_at, size_of

# Messages that a verifier reads from its socket before it handles them. Few, because libzmq takes them from its peers
# in turns: in a long queue here, one peer's flood would delay the others' messages.
READ_AHEAD = 16
CLOSED = "the connection was closed on this side"


class ZmqListener:
    """A :class:`protocols.transport.Listener`. With CURVE keys, a connection's id is its routing id followed by the
    public key that it was made with."""

    def __init__(
        self,
        router: Socket,
        publisher: Socket,
        address: Address,
        telemetry: Address,
        claim: ExitStack,
        doors: Doors,
        holders: Callable[[bytes], Holder] | None,
    ):
        """``holders``: the rights of a key's holder; None: there are no keys."""
        self.address = str(address)
        self.telemetry = str(telemetry)
        self._publisher = publisher
        self._claim = claim
        self._doors, self._holders = doors, holders
        self._unwanted = Unwanted(doors.hang_up)
        self._pump = Pump(router, Backlog(READ_AHEAD, size_of), holders is not None, self._unwanted)

    @property
    def closed(self) -> bool:
        return self._pump.closed

    async def receive(self) -> tuple[bytes, list[bytes]]:
        frames = await self._pump.receive()
        return frames.pop(0), frames

    def receive_nowait(self) -> tuple[bytes, list[bytes]] | None:
        frames = self._pump.receive_nowait()
        return None if frames is None else (frames.pop(0), frames)

    def holder(self, peer: bytes) -> Holder:
        return self._holders(peer[-KEY_LENGTH:]) if self._holders is not None else ANYBODY

    def send(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        return self._pump.send([peer if self._holders is None else peer[:-KEY_LENGTH], *frames])

    def hang_up(self, peer: bytes) -> None:
        self._unwanted.add(peer)

    @property
    def watched(self) -> bool:
        return self._doors.open_at[self._publisher] > 0

    def publish(self, topic: bytes, frames: Sequence[bytes]) -> None:
        send_frames(self._publisher, [topic, *frames])

    def close(self) -> None:
        self._doors.close()
        self._pump.close(CLOSED)
        self._publisher.close()
        self._claim.close()


class ZmqLink:
    """A :class:`protocols.transport.Link`. The socket's monitor tells why a connection cannot be made."""

    EVENTS = (
        zmq.Event.CONNECTED
        | zmq.Event.CONNECT_RETRIED
        | zmq.Event.HANDSHAKE_SUCCEEDED
        | zmq.Event.HANDSHAKE_FAILED_AUTH
        | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
        | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    )
    HANG_UPS = 3  # failed handshakes in a row after which a key is at fault: one may be a verifier that was killed

    def __init__(self, dealer: Socket, address: Address, keyed: bool):
        """``keyed``: the socket uses CURVE."""
        self._address = address
        self._keyed = keyed
        self._reached = False  # whether the present attempt found a listener to connect
        self._hang_ups = 0
        self._monitor = Service(dealer.get_monitor_socket(self.EVENTS), self._watch)
        dealer.connect(str(address))
        self._pump = Pump(dealer, Backlog(INBOX, size_of))

    def _watch(self, frames: list[bytes]) -> None:
        match parse_monitor_message(frames)["event"]:
            case zmq.Event.CONNECTED:
                self._reached = True
                self._pump.found(True)
            case zmq.Event.HANDSHAKE_SUCCEEDED:
                self._hang_ups = 0
            case zmq.Event.CONNECT_RETRIED:
                self._pump.found(self._reached)
                self._reached = False
            case zmq.Event.HANDSHAKE_FAILED_AUTH:
                self._fail("denies this key; copy its .pub file into the verifier's --allow directory")
            case zmq.Event.HANDSHAKE_FAILED_PROTOCOL if self._keyed:
                self._fail("has no keys; leave out --key and --server-key")
            case zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
                self._fail("lets in only those with a key; pass --key with your own and --server-key with its .pub")
            case zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
                self._hang_ups += 1
                if self._hang_ups == self.HANG_UPS:
                    # A verifier cannot read what was encrypted for another key, so it gives no reason. One without keys
                    # may close the connection before its greeting, which would give it, is read.
                    self._fail(
                        "has another public key than the given server key, or no keys; pass its own .pub file as "
                        "--server-key, or leave out --key and --server-key"
                        if self._keyed
                        else "hangs up at once; if it wants keys, pass --key and --server-key"
                    )

    def _fail(self, fault: str) -> None:
        self._pump.fail(f"the verifier at {self._address} {fault}")

    @property
    def closed(self) -> bool:
        return self._pump.closed

    async def writable(self, wait: bool = True) -> None:
        await self._pump.writable(None if wait else nobody_at(str(self._address)))

    async def receive(self) -> list[bytes]:
        return await self._pump.receive()

    def receive_nowait(self) -> list[bytes] | None:
        return self._pump.receive_nowait()

    def send(self, frames: Sequence[bytes]) -> bool:
        return self._pump.send(frames)

    def close(self) -> None:
        if not self._pump.socket.closed:
            self._pump.socket.disable_monitor()
            self._monitor.close()
        self._pump.close(CLOSED)


class ZmqFeed:
    """A :class:`protocols.transport.Feed`."""

    def __init__(self, subscriber: Socket):
        self._pump = Pump(subscriber, Backlog(INBOX, size_of))

    @property
    def closed(self) -> bool:
        return self._pump.closed

    async def receive(self) -> list[bytes]:
        return (await self._pump.receive())[1:]

    def close(self) -> None:
        self._pump.close(CLOSED)
