"""Room for connections: the limit of open files, and newcomers that are hung up on before it is reached.

libzmq accepts whatever comes. At the limit of open files it spins over tcp and aborts the process over ipc; and a
stranger that connects and says nothing takes a file until ``HANDSHAKE_MS`` are over.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket as sockets
from collections import Counter
from functools import partial

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocols.errors import ConfigError
from protocols.pump import Service, Socket

log = logging.getLogger("duoactor.network")
HANDSHAKE_MS = 5_000  # time that a connection has to finish ZMTP's handshake: three round trips
LEAST_FILES = 256  # below which a verifier with a model, or a gateway, has no room for peers
MOST_FILES = 65_536  # twice what one address can open to one port, by the ephemeral ports that it has
OWN_FILES = 128  # files that are no connections: weights, logs, libzmq's own sockets


def raise_file_limit() -> int:
    """Raise the soft limit of open files as far as is of use and allowed; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # a container may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


def room_for_connections() -> int:
    """How many connections a process's listeners may hold open. Raises ConfigError if it may open too few files."""
    files = raise_file_limit()
    if files < LEAST_FILES:
        raise ConfigError(
            f"this process may open {files} files at once, and needs {LEAST_FILES} and one for each peer: "
            "raise the limit with `ulimit -n 4096`, or LimitNOFILE= in a systemd unit"
        )
    return (files - OWN_FILES) * 3 // 4  # the rest: connections that libzmq accepts before they are refused


class Doors:
    """Counts the connections of listening sockets, and hangs up on newcomers while there are too many.

    Unbinding is no way to do that: with the listener libzmq ends the connections that it has accepted."""

    EVENTS = zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED

    def __init__(self, most: int) -> None:
        self.most, self.open, self.hung_up = most, 0, 0
        self.open_at = Counter[Socket]()
        self._watched: list[tuple[Socket, Service]] = []

    def watch(self, socket: Socket) -> None:
        self._watched.append((socket, Service(socket.get_monitor_socket(self.EVENTS), partial(self._seen, socket))))

    def _seen(self, socket: Socket, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)
        change = -1 if event["event"] == zmq.Event.DISCONNECTED else 1
        self.open += change
        self.open_at[socket] += change
        if change < 0:
            return
        if self.open > self.most:
            self._warn()
            self.hang_up(event["value"])

    def _warn(self) -> None:
        if not self.hung_up:
            log.warning(
                "%d connections are open, as many as the limit of open files allows: newcomers wait until others "
                "leave; raise the limit with `ulimit -n`, and see who connects",
                self.most,
            )
        self.hung_up += 1

    def hang_up(self, descriptor: int) -> None:
        """End a connection. libzmq owns the descriptor, and closes it when it reads the end."""
        with contextlib.suppress(OSError):  # it has left meanwhile
            connection = sockets.socket(fileno=descriptor)
            try:
                connection.shutdown(sockets.SHUT_RDWR)
            finally:
                connection.detach()

    def close(self) -> None:
        """Stop watching. To be called before the sockets are closed."""
        for socket, monitor in self._watched:
            if not socket.closed:
                socket.disable_monitor()
            monitor.close()
        self._watched = []
