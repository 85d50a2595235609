"""An actor's process: its signals, its event loop, its CPUs and its network."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal

import uvloop

from actors.settings import KeySettings, PeerSettings, VerifierSettings
from protocols.errors import ConfigError, DuoactorError
from protocols.security import load_security
from protocols.zeromq import ZmqNetwork

log = logging.getLogger("duoactor.actor")
# New objects between two garbage collections while modules and models load: next to none of them are garbage
LOADING = 100_000
CLOCK = time.monotonic  # uvloop's own counts whole milliseconds: too coarse for waits of one or two


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Rare garbage collections while an actor loads, and none of its loaded objects."""
    usual = gc.get_threshold()
    gc.set_threshold(LOADING)
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*usual)


def pin(cpus: str) -> None:
    """Pin this thread, and the threads that it starts, to CPUs, named as ``0`` or ``0,1``. Where the system does not
    allow that, they run unpinned. Raises ConfigError for what is not a list of CPUs."""
    named = named_cpus(cpus)
    if named and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, named)
        except OSError:
            log.warning("cannot pin to CPUs %s, which this process may not use; running unpinned", cpus)


def named_cpus(cpus: str) -> list[int]:
    """The numbers in a list such as ``0,1``; "" is empty. Raises ConfigError for anything else."""
    try:
        return [int(cpu) for cpu in cpus.split(",") if cpus]
    except ValueError:
        raise ConfigError(f"{cpus!r} names no CPUs; write their numbers, such as 0 or 0,1") from None


class _Stop(asyncio.Event):
    """An event that SIGINT and SIGTERM set, from the moment that a task waits for it."""

    async def wait(self) -> Literal[True]:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.set)
        return await super().wait()


def run_actor(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run ``main(stop)`` on uvloop until it returns. Returns the process's exit code.

    SIGINT and SIGTERM set ``stop``. Before ``main`` waits for ``stop`` (it loads a model then), they end the process.
    """

    def leave(number: int, frame: object) -> None:
        # no exception: libraries that compile call Python from C, where one is printed and lost; and a thread that
        # loads a model would be waited for
        sys.stderr.flush()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)

    async def body() -> None:
        await main(_Stop())

    try:
        uvloop.run(body())
    except DuoactorError as error:
        print(f"duoactor: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def open_network(settings: KeySettings) -> ZmqNetwork:
    """The network with the keys of ``settings``. Raises ConfigError if they cannot be read, or if a peer's address
    cannot be used: early, before a model is loaded."""
    server_key = settings.server_key if isinstance(settings, PeerSettings) else ""
    allow = settings.allow if isinstance(settings, VerifierSettings) else ""
    secured = settings.key or server_key or allow
    security = load_security(settings.key, server_key, allow) if secured else None
    network = ZmqNetwork(security, cpus_beside(settings.cpus) if isinstance(settings, VerifierSettings) else ())
    if isinstance(settings, PeerSettings):
        network.parse_connect(settings.connect)
    return network


def cpus_beside(cpus: str) -> set[int]:
    """The CPUs for the I/O threads of an actor that computes on ``cpus``: all others that it may use.

    The kernel runs a thread that is woken on the waker's CPU if no other is idle, and none is while compute threads
    spin. Without this every message cost the verifier 0.1 ms.
    """
    own = set(named_cpus(cpus))
    return os.sched_getaffinity(0) - own if own and hasattr(os, "sched_getaffinity") else set()
