"""The world of a command line; tests put their own in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duoactor.launch.child import own_command

if TYPE_CHECKING:  # an actor's command needs no client
    from duoactor.client.async_client import AsyncClient
    from duoactor.client.sync_client import Client
    from duoactor.launch.deployment import Deployment
    from duoactor.launch.supervisor import Probe
    from duoactor.launch.wanted import Wanted

SHORT_ENOUGH = 60  # characters of a directory: a socket's path may have about a hundred


def _connect(address: str, key: str, server_key: str) -> Client:
    from duoactor.client.sync_client import Client

    return Client(address, key=key, server_key=server_key)


def _connect_async(*place: Any, **how: Any) -> AsyncClient:
    from duoactor.client.async_client import AsyncClient

    return AsyncClient(*place, **how)


def _probe(deployment: Deployment) -> Probe:
    from duoactor.launch.readiness import ask_status

    return ask_status(deployment)


def available_cpus() -> tuple[int, ...]:
    """The CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@dataclass(slots=True)
class Environment:
    """``connect(address, key, server_key)`` gives a client; ``command(*arguments)`` is how a child is run;
    ``probe(deployment)`` asks whether the actors are ready; ``connect_async(address, key=, server_key=)``."""

    debug: bool = False
    connect: Callable[[str, str, str], AbstractContextManager[Client]] = _connect
    command: Callable[..., tuple[str, ...]] = own_command
    probe: Callable[[Deployment], Probe] = _probe
    connect_async: Callable[..., AsyncClient] = _connect_async

    def deploy(self, wanted: Wanted, log_flags: Sequence[str] = ("--quiet",)) -> Deployment:
        """``wanted`` on this host: every option decided, and a plan for each actor."""
        from duoactor.launch.deployment import deploy

        return deploy(wanted, cpus=available_cpus(), command=self.command, log_flags=log_flags)


@contextmanager
def private_address() -> Iterator[str]:
    """An address that only this user can reach, as long as the block runs."""
    roomy = len(tempfile.gettempdir()) <= SHORT_ENOUGH
    with tempfile.TemporaryDirectory(prefix="duo-", dir=None if roomy else "/tmp") as directory:
        yield f"ipc://{directory}/verifier.sock"
