"""An actor's process: its signals, event loop and cores."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import uvloop

from actors.settings import KeySettings, PeerSettings, VerifierSettings
from protocols.errors import ConfigError, DuoactorError
from protocols.security import load_security
from protocols.zeromq import ZmqNetwork

log = logging.getLogger("duoactor.actor")
CLOCK = time.monotonic  # uvloop's own counts whole milliseconds: too coarse for waits of one or two


def pin(cpus: str) -> None:
    """Pin this thread, and those that it starts, to the CPUs named as ``0`` or ``0,1``; where the system cannot, it
    runs unpinned."""
    named = named_cpus(cpus)
    if named and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, named)
        except OSError:
            log.warning("cannot pin to CPUs %s, which this process may not use; running unpinned", cpus)


def named_cpus(cpus: str) -> list[int]:
    """ConfigError for what names none; an empty text is none."""
    try:
        return [int(cpu) for cpu in cpus.split(",") if cpus]
    except ValueError:
        raise ConfigError(f"{cpus!r} names no CPUs; write their numbers, such as 0 or 0,1") from None


def own_cpus() -> int:
    """How many CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Interrupted(KeyboardInterrupt):
    """A signal came before the actor served anybody; ``args`` holds its number."""


class _Stop(asyncio.Event):
    """From the moment that somebody waits for it, SIGINT and SIGTERM set it."""

    async def wait(self) -> Literal[True]:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.set)
        return await super().wait()


def run_actor(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run ``main(stop)`` on uvloop until it returns. Returns the exit code.

    SIGINT and SIGTERM set ``stop``. Before ``main`` waits for that, while it loads a model, they interrupt it.
    """

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)

    async def body() -> None:
        await main(_Stop())

    try:
        uvloop.run(body())
    except DuoactorError as error:
        print(f"duoactor: {error}", file=sys.stderr, flush=True)
        return 1
    except Interrupted as error:
        sys.stderr.flush()
        os._exit(128 + error.args[0])  # without waiting for a thread that goes on loading
    return 0


def open_network(settings: KeySettings) -> ZmqNetwork:
    """The network that those keys give. ConfigError if they cannot be read, or if the address cannot be connected to:
    before a model is loaded for it."""
    server_key = settings.server_key if isinstance(settings, PeerSettings) else ""
    allow = settings.allow if isinstance(settings, VerifierSettings) else ""
    secured = settings.key or server_key or allow
    security = load_security(settings.key, server_key, allow) if secured else None
    network = ZmqNetwork(security, cpus_beside(settings.cpus) if isinstance(settings, VerifierSettings) else ())
    if isinstance(settings, PeerSettings):
        network.parse_connect(settings.connect)
    return network


def cpus_beside(cpus: str) -> set[int]:
    """Where the sockets of an actor that computes on ``cpus`` run: on all others that there are.

    A thread that is woken while no CPU is idle, and none is while helpers look for work, takes the waker's: every
    message cost the verifier 0.1 ms.
    """
    try:
        own = {int(cpu) for cpu in cpus.split(",")}
    except ValueError:
        return set()
    return os.sched_getaffinity(0) - own if hasattr(os, "sched_getaffinity") else set()
