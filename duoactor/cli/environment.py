"""The world of a command line; tests put their own in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duoactor.launch.child import own_command
from protocols.errors import ConnectionLost, ModelError

if TYPE_CHECKING:  # an actor's command needs no client
    from duoactor.client.async_client import AsyncClient
    from duoactor.client.sync_client import Client
    from duoactor.launch.deployment import Deployment
    from duoactor.launch.progress import LaunchReport
    from duoactor.launch.supervisor import Probe, Supervisor
    from duoactor.launch.wanted import Wanted
    from protocols.messages import StatusReport

SHORT_ENOUGH = 60  # characters of a directory: a socket's path may have about a hundred
PROBE_TIMEOUT_S = 1.0  # a verifier that loads its model does not answer; what is shown meanwhile is as old as this


def _connect(address: str, key: str, server_key: str) -> Client:
    from duoactor.client.sync_client import Client

    return Client(address, key=key, server_key=server_key)


def _connect_async(*place: Any, **how: Any) -> AsyncClient:
    from duoactor.client.async_client import AsyncClient

    return AsyncClient(*place, **how)


def _probe(deployment: Deployment) -> Probe:
    """Asks the verifier of a deployment for its status, once per call."""
    from duoactor.client.async_client import AsyncClient

    keys = deployment.controller

    async def probe() -> StatusReport | None:
        client = AsyncClient(deployment.address, key=keys.key, server_key=keys.server_key, timeout=PROBE_TIMEOUT_S)
        with suppress(ConnectionLost):
            async with client:
                return await client.status()
        return None

    return probe


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
        from duoactor.launch.preflight import check_names

        deployment = deploy(wanted, cpus=available_cpus(), command=self.command, log_flags=log_flags)
        check_names(deployment)
        return deployment

    @asynccontextmanager
    async def supervised(
        self, deployment: Deployment, report: LaunchReport, needs_drafts: bool = False
    ) -> AsyncIterator[Supervisor]:
        """The actors of a deployment, once all are ready; ``needs_drafts``: drafters, too."""
        from duoactor.launch.supervisor import Supervisor

        supervisor = Supervisor(
            deployment.plans,
            self.probe(deployment),
            report=report,
            address=deployment.address,
            needs_drafts=needs_drafts,
        )
        try:
            async with supervisor:
                report.done()
                yield supervisor
        finally:
            report.clear()  # what is said next, such as an error, begins a line of its own

    @asynccontextmanager
    async def running(
        self, deployment: Deployment, log_lines: bool = False
    ) -> AsyncIterator[tuple[Supervisor, AsyncClient]]:
        """The actors of a deployment, drafters too, and a client of their verifier."""
        from duoactor.launch.progress import LaunchReport

        async with (
            self.supervised(deployment, LaunchReport(lines=log_lines), needs_drafts=True) as supervisor,
            self.connect_async(deployment.address) as client,
        ):
            _check_head(deployment, supervisor.status)
            yield supervisor, client


def _check_head(deployment: Deployment, status: StatusReport | None) -> None:
    """Raise ModelError if the verifier has left out a head that was named: a figure without it would mislead."""
    from actors.engines.heads.kinds import configuration, kind_of

    name = deployment.verifier.inline_draft
    if status is not None and status.inline is None and name and kind_of(configuration(name)):
        raise ModelError(status.left_out or f"{name} does not draft for this target")


@contextmanager
def private_address() -> Iterator[str]:
    """An address that only this user can reach, as long as the block runs."""
    roomy = len(tempfile.gettempdir()) <= SHORT_ENOUGH
    with tempfile.TemporaryDirectory(prefix="duo-", dir=None if roomy else "/tmp") as directory:
        yield f"ipc://{directory}/verifier.sock"
