"""What a command line needs from the world; tests put their own in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from duoactor.demo import Piece, Streams
from duoactor.deployment import Deployment
from duoactor.launcher import Probe, own_command
from duoactor.launching import verifier_status
from protocols.messages import Sampling, StatusReport


class Connection(Protocol):
    """What commands ask of :class:`duoactor.Client`."""

    def stream(
        self,
        prompt: str = "",
        *,
        messages: Sequence[Any] = (),
        sampling: Sampling | None = None,
        method: str = "",
        num_speculative_tokens: int = 0,
        sequences: int = 0,
    ) -> Iterator[Piece]: ...
    def status(self) -> StatusReport: ...
    def swap(self, old: str, new: str) -> Any: ...
    def drain(self, actor_id: str) -> Any: ...


class AsyncConnection(Streams, Protocol):
    """What the demo asks of :class:`duoactor.AsyncClient`."""

    async def status(self) -> StatusReport: ...


def _connect(address: str, key: str, server_key: str) -> AbstractContextManager[Connection]:
    from duoactor.sync_client import Client

    return Client(address, key=key, server_key=server_key)


def _connect_async(address: str) -> AbstractAsyncContextManager[AsyncConnection]:
    from duoactor.client import AsyncClient

    return AsyncClient(address)


def available_cpus() -> tuple[int, ...]:
    """The CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@dataclass(slots=True)
class Session:
    """``connect(address, key, server_key)`` gives a client; ``command(*arguments)`` is how a child is run;
    ``probe(deployment)`` asks whether the actors are ready."""

    debug: bool = False
    connect: Callable[[str, str, str], AbstractContextManager[Connection]] = _connect
    command: Callable[..., tuple[str, ...]] = own_command
    probe: Callable[[Deployment], Probe] = verifier_status
    connect_async: Callable[[str], AbstractAsyncContextManager[AsyncConnection]] = _connect_async
