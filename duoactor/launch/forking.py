"""How a fork server forks actors: it was asked through a socket, each time with three descriptors that are to be the
actor's. :mod:`duoactor.cli.fork_server` is the process, :mod:`duoactor.launch.forks` the other end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

import msgspec

READY = b"ready"
LONGEST = 1 << 20  # bytes of a message: a command line and an environment
ROOM = 256  # bytes of our own command line, which actors write theirs over


class Fork(msgspec.Struct):
    """``arguments``: those after ``duoactor`` on the command line."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


def serve(link: socket.socket) -> Fork | None:
    """Answers every :class:`Fork` with the actor's process id. It forks twice: the actor is an orphan, whom the
    supervisor adopts, and lives on when the server dies.

    Returns in each actor what it is to do, and here None once nobody is at the other end."""
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


def rename(arguments: tuple[str, ...]) -> None:
    """Show what runs to ``ps``: Linux shows the bytes at which the command line was put at the start."""
    sys.argv[:] = ["duoactor", *arguments]
    words = [sys.executable, "-m", *sys.argv]
    with contextlib.suppress(OSError, ValueError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        text = "\0".join(words).encode()[: end - begin - 1]
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, len(text))
