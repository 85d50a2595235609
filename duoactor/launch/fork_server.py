"""A process that has imported what actors with a model need, and computed nothing: it forks them.

Imports are most of what a small drafter takes from its start to its first draft. Here they are made once, before the
first start; an actor that is started again has them, and shares their memory with the others.

``python -m duoactor.launch.fork_server`` reads one :class:`Fork` after the other from the socket that is its standard
input, each with the three descriptors that are to be the actor's, and answers with the actor's process id. It forks
twice: the actor is an orphan, whom the supervisor adopts (:mod:`duoactor.launch.forks`), and lives on when we die.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec

READY = b"ready"
LONGEST = 1 << 20  # bytes of a message: a command line and an environment
ROOM = 256  # bytes of our own command line, which actors write theirs over


class Fork(msgspec.Struct):
    """``arguments``: behind ``duoactor``."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


def main() -> int:
    from duoactor import cli

    link = socket.socket(fileno=os.dup(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from actors.engines.preload import preload

    preload()
    link.send(READY)
    fork = _serve(link)
    if fork is None:
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _rename(fork.arguments)
    return cli.main(fork.arguments)


def _serve(link: socket.socket) -> Fork | None:
    """Returns in each actor what it is to do, and here None once nobody is at the other end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(link, LONGEST, 3)
        if not message:
            return None
        told, tell = os.pipe()
        if (parent := os.fork()) == 0:
            if os.fork() != 0:
                os._exit(0)
            os.setsid()
            for standard, descriptor in enumerate(descriptors):
                os.dup2(descriptor, standard)
            os.write(tell, str(os.getpid()).encode())
            link.close()
            for descriptor in (told, tell, *descriptors):
                os.close(descriptor)
            fork = msgspec.json.decode(message, type=Fork)
            os.environ.clear()
            os.environ.update(fork.environment)
            return fork
        os.waitpid(parent, 0)  # the actor is an orphan now, before anybody hears of it
        for descriptor in (tell, *descriptors):
            os.close(descriptor)
        link.send(os.read(told, 20))
        os.close(told)


def _rename(arguments: tuple[str, ...]) -> None:
    """Show what runs to ``ps``: Linux shows the bytes at which the command line was put at the start."""
    sys.argv[:] = ["duoactor", *arguments]
    words = [sys.executable, "-m", *sys.argv]
    with contextlib.suppress(OSError, ValueError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        text = "\0".join(words).encode()[: end - begin - 1]
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, len(text))


if __name__ == "__main__":
    sys.exit(main())
