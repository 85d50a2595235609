"""The network over ZeroMQ: ROUTER and PUB at the verifier, DEALER and SUB at its peers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator

from protocols import address as addresses
from protocols.address import Address
from protocols.doors import HANDSHAKE_MS, Doors, room_for_connections
from protocols.ends import ZmqFeed, ZmqLink, ZmqListener
from protocols.errors import ConfigError, ConnectionLost
from protocols.ipc import IpcClaim, check_directory, in_use
from protocols.pump import Socket
from protocols.security import Holder, Security
from protocols.wire import MAX_BYTES

QUEUE = 1_000  # messages per peer and direction that libzmq holds
LINGER_MS = 500
RECONNECT_MS = (50, 1_000)  # first and longest pause between attempts to connect
KEEPALIVE_MS = (5_000, 15_000)  # ZMTP pings and their time-out, which notice a lost machine and not a busy process
PORT_TRIES = 32  # ports after the verifier's own that telemetry tries before any free one
ZAP_DOMAIN, ZAP_TELEMETRY = "duoactor", "duoactor.telemetry"


class AllowList:
    """Tells pyzmq's authenticator which CURVE keys may connect to which socket, and counts the denied ones."""

    def __init__(self, context: zmq.Context[Socket], security: Security) -> None:
        self.denied = 0
        self._holders: dict[bytes, Holder] = {}  # holders by key, from its latest handshake
        self._security = security
        self._authenticator = AsyncioAuthenticator(context)
        for domain in (ZAP_DOMAIN, ZAP_TELEMETRY):
            self._authenticator.configure_curve_callback(domain, self)
        self._authenticator.start()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether ``key`` (Z85) may connect to the sockets of ``domain``; called by zmq.auth."""
        holder = self._holders[key] = self._security.holder(key)
        admitted = holder.watches if domain == ZAP_TELEMETRY else bool(holder.roles)
        self.denied += not admitted
        if not holder.roles:
            del self._holders[key]
        return admitted

    def holder(self, key: bytes) -> Holder:
        """The rights of a key that is connected: reading them from files for each message would take long."""
        return self._holders.get(key) or self._security.holder(key)

    def close(self) -> None:
        self._authenticator.stop()


class ZmqNetwork:
    """The sockets of one process."""

    def __init__(self, security: Security | None = None, cpus: Iterable[int] = ()) -> None:
        """With ``security`` every socket uses CURVE, without it none does. ``cpus``: where libzmq's own threads run;
        empty: anywhere."""
        self._security = security
        self._context: zmq.Context[Socket] = zmq.Context()
        for cpu in cpus:
            self._context.set(zmq.THREAD_AFFINITY_CPU_ADD, cpu)
        self._allow_list: AllowList | None = None
        self._open: list[ZmqListener | ZmqLink | ZmqFeed] = []

    @property
    def denied(self) -> int:
        """Connections refused for their key so far."""
        return self._allow_list.denied if self._allow_list else 0

    def listen(self, address: str) -> ZmqListener:
        """See :class:`protocols.transport.Network`. Telemetry is at ``PATH.telemetry``, or at the next free port."""
        wanted = addresses.parse(address, bind=True)
        self._check_bind(wanted)
        doors = Doors(room_for_connections())
        with ExitStack() as undo:
            undo.callback(doors.close)
            if wanted.scheme == "ipc":
                claim = IpcClaim(wanted)
                undo.callback(claim.release)
                ready = claim.open_sockets()
            if self._security and not self._allow_list:
                self._allow_list = AllowList(self._context, self._security)
            router = undo.enter_context(self._socket(zmq.ROUTER, wanted, server=True))
            router.set(zmq.ROUTER_MANDATORY, 1)
            router.set(zmq.ROUTER_HANDOVER, 0)
            publisher = undo.enter_context(self._socket(zmq.PUB, wanted, server=True))
            doors.watch(router)
            doors.watch(publisher)
            if wanted.scheme == "ipc":
                bound, telemetry = wanted, wanted.telemetry
                for socket, one, file in zip((router, publisher), (bound, telemetry), ready, strict=True):
                    socket.set(zmq.USE_FD, file.detach())
                    socket.bind(str(one))
            else:
                bound = _bind(router, wanted, [wanted])
                telemetry = _bind(publisher, wanted, _next_ports(bound))
            holders = self._allow_list.holder if self._allow_list else None
            listener = ZmqListener(router, publisher, bound, telemetry, undo.pop_all(), doors, holders)
        self._keep(listener)
        return listener

    def connect(self, address: str) -> ZmqLink:
        """See :class:`protocols.transport.Network`."""
        there = self.parse_connect(address)
        try:
            link = ZmqLink(self._socket(zmq.DEALER, there, server=False), there, self._security is not None)
        except zmq.ZMQError as error:
            raise ConnectionLost(f"{there} cannot be connected ({error.strerror})") from None
        self._keep(link)
        return link

    def subscribe(self, address: str, topics: Sequence[bytes] = (b"",)) -> ZmqFeed:
        """See :class:`protocols.transport.Network`."""
        there = self.parse_connect(address)
        subscriber = self._socket(zmq.SUB, there, server=False)
        for topic in topics:
            subscriber.subscribe(topic)
        subscriber.connect(str(there))
        feed = ZmqFeed(subscriber)
        self._keep(feed)
        return feed

    def close(self) -> None:
        """Close all sockets, and wait for the last messages to leave: ``LINGER_MS`` at most."""
        for one in self._open:
            one.close()
        self._open.clear()
        if self._allow_list:
            self._allow_list.close()
        self._context.destroy(0)  # what could not be made whole is no end that was closed, and would be waited for

    def _keep(self, one: ZmqListener | ZmqLink | ZmqFeed) -> None:
        """Remember an end that ``close`` has to close, and forget the closed ones."""
        self._open = [*(other for other in self._open if not other.closed), one]

    def _check_bind(self, address: Address) -> None:
        if not address.local and not self._security:
            raise ConfigError(
                f"{address} can be reached by other machines, so everyone needs a key: run `duoactor keys verifier "
                f"--directory keys`, then add --key keys/verifier.key --allow keys (whoever has a .pub file there may "
                "connect); or bind a loopback address such as tcp://127.0.0.1:7601"
            )
        if self._security and self._security.allowed is None:
            raise ConfigError(
                "a verifier with a key needs a list of those who may connect: pass --allow with the directory that "
                "holds their .pub files, made with `duoactor keys`"
            )

    def parse_connect(self, text: str) -> Address:
        """Return the address if ``connect`` can use it, else raise the ConfigError that it would."""
        address = addresses.parse(text)
        if not address.local and not self._security:
            raise ConfigError(
                f"{address} is on another machine, which needs a key: run `duoactor keys NAME`, copy NAME.pub into the "
                "verifier's --allow directory, and pass --key NAME.key and --server-key with the verifier's own .pub"
            )
        if self._security and self._security.server_key is None:
            raise ConfigError(
                "connecting with a key needs the verifier's public key too: pass its file as --server-key"
            )
        if address.scheme == "ipc":
            check_directory(address.path, create=False)
        return address

    def _socket(self, kind: int, address: Address, *, server: bool) -> Socket:
        socket: Socket = self._context.socket(kind)
        socket.linger = LINGER_MS
        socket.set(zmq.SNDHWM, QUEUE)
        socket.set(zmq.RCVHWM, QUEUE)
        socket.set(zmq.MAXMSGSIZE, MAX_BYTES)
        socket.set(zmq.IPV6, int(":" in address.host))
        if address.scheme == "tcp":
            socket.set(zmq.HEARTBEAT_IVL, KEEPALIVE_MS[0])
            socket.set(zmq.HEARTBEAT_TIMEOUT, KEEPALIVE_MS[1])
        if server:
            socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        else:
            socket.set(zmq.RECONNECT_IVL, RECONNECT_MS[0])
            socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
        if kind == zmq.DEALER:
            # no ROUTING_ID: the ROUTER gives each connection an id of its own, which no peer can claim
            socket.set(zmq.IMMEDIATE, 1)
        if self._security:
            socket.set(zmq.CURVE_SECRETKEY, self._security.secret_key)
            socket.set(zmq.CURVE_PUBLICKEY, self._security.public_key)
            if server:
                socket.set(zmq.CURVE_SERVER, 1)
                socket.set(zmq.ZAP_DOMAIN, (ZAP_TELEMETRY if kind == zmq.PUB else ZAP_DOMAIN).encode())
            elif self._security.server_key:
                socket.set(zmq.CURVE_SERVERKEY, self._security.server_key)
        return socket


def _next_ports(address: Address) -> Iterator[Address]:
    for port in range(address.port + 1, min(address.port + PORT_TRIES, 65535) + 1):
        yield replace(address, port=port)
    yield replace(address, port=0)


def _bind(socket: Socket, wanted: Address, candidates: Sequence[Address] | Iterator[Address]) -> Address:
    for candidate in candidates:
        try:
            socket.bind(str(candidate))
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                continue
            raise ConfigError(f"{wanted} cannot be bound ({error.strerror}); choose another --bind") from error
        return addresses.parse(bytes(socket.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode(), bind=True)
    raise in_use(wanted)
