"""A running set of actors, as any process on the Ray cluster finds and reaches it."""

from __future__ import annotations

import asyncio
import atexit
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from duoactor.client.async_client import AsyncClient
from duoactor.client.sync_client import Client, Runner
from duoactor.launch.deployment import reachable_http
from duoactor.launch.host import Places
from duoactor.launch.issue_keys import VERIFIER, KeyFiles
from duoactor.launch.members import Member
from duoactor.launch.supervisor import POLL_AGAIN_S, LaunchError, healthy_pid
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError, ConnectionLost
from protocols.messages import StatusReport
from protocols.security import PUBLIC_SUFFIX, SECRET_SUFFIX, KeyRole

NAME = "duoactor"
# Ray takes 15 to 30 s to find that a node is gone; then the target is loaded elsewhere.
RECONNECT_TIMEOUT_S = 300.0
# A handshake and an answer, from a verifier that computes on a node that may do much else.
PROBE_TIMEOUT_S = 5.0
PATIENCE_S = 10.0  # before it is said what is waited for, and from then on


def connect_to_ray() -> None:
    """Connect to Ray, once. ConfigError if there is no Ray cluster."""
    if not ray.is_initialized():
        try:
            ray.init(address="auto", logging_level="ERROR")
        except ConnectionError:
            raise ConfigError(
                "no Ray cluster was found: start one with `ray start --head`, or set RAY_ADDRESS"
            ) from None


def check_name(name: str) -> None:
    """ConfigError for the namespace in which Ray Serve keeps its own actors: `down` would end them."""
    if name == "serve":
        raise ConfigError("the name serve is that of Ray Serve's own actors: choose another for the set")


def hosts_of(name: str) -> dict[str, Any]:
    """The Ray actors of a set, by name."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"]: ray.get_actor(one["name"], namespace=name) for one in listed if one["namespace"] == name}


def connect(name: str = NAME) -> Cluster:
    """A running set of actors, from any process on the Ray cluster. ConfigError if the name is unknown."""
    connect_to_ray()
    hosts = hosts_of(name)
    if f"{VERIFIER}-1" not in hosts:  # Ray's own namespaces hold other actors
        raise ConfigError(f"no set of actors named {name} is on this Ray cluster: start one with duoactor.ray.up")
    return Cluster(hosts)


class Cluster:
    """A set of actors as this process reaches it: a file here holds the address of each verifier, also after Ray
    has started it again elsewhere. Leaving ``with`` removes the files, and so does this process's end; the actors stay
    (:func:`down`)."""

    def __init__(self, hosts: dict[str, Any]) -> None:
        self.hosts = hosts  # Ray actors by name
        names = [name for name in hosts if name.startswith(f"{VERIFIER}-")]
        self._verifiers = [hosts[name] for name in sorted(names, key=lambda name: (len(name), name))]
        self._directory = tempfile.TemporaryDirectory(prefix="duoactor-")
        keys: KeyFiles = ray.get(self._verifiers[0].keys.remote())
        keys.write(self._directory.name)
        self.key = str(Path(self._directory.name) / (KeyRole.OPERATOR + SECRET_SUFFIX))
        self.server_key = str(Path(self._directory.name) / (VERIFIER + PUBLIC_SUFFIX))
        self._places = Places(self._directory.name, [partial(find, one) for one in self._verifiers])
        self.addresses = self._places.addresses
        self._runner = Runner()
        self._runner.run(self._places.__aenter__())
        atexit.register(self.close)  # and so held: a client needs the files even if the caller drops the cluster

    @property
    def address(self) -> str:
        """The address of all verifiers for a client or ``--connect`` on this host."""
        return ",".join(self.addresses)

    def client(self, reconnect_timeout: float = RECONNECT_TIMEOUT_S) -> Client:
        """A client of all verifiers. Seconds that its streams wait for a restart elsewhere."""
        return Client(self.addresses, key=self.key, server_key=self.server_key, reconnect_timeout=reconnect_timeout)

    def actors(self) -> list[dict[str, str]]:
        """Role, name, node and model of each."""
        return list(ray.get([host.describe.remote() for host in self.hosts.values()]))

    def close(self) -> None:
        """Remove the files; a second call does nothing."""
        atexit.unregister(self.close)
        self._runner.close(self._places.aclose)
        self._directory.cleanup()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def wait_for(self, members: Sequence[Member], report: Callable[[str], None]) -> None:
        """Wait until all are there. LaunchError with the sentence of an actor that cannot run."""
        failures = {self.hosts[one.name].failure.remote(): one.name for one in members}
        placed = {self.hosts[one.name].role.remote(): one for one in members}
        told, since = "", time.monotonic()
        seen = self._there(members)
        while missing := [one.name for one in members if one.name not in seen]:
            failed, _ = ray.wait(list(failures), timeout=POLL_AGAIN_S)
            for ref in failed:
                raise LaunchError(f"{failures[ref]}: {ray.get(ref)}")
            _, waiting = ray.wait(list(placed), num_returns=len(placed), timeout=0)
            unplaced = {placed[ref].name: placed[ref].needs for ref in waiting}
            said = ", ".join(f"{one} (Ray has no room: {unplaced[one]})" if one in unplaced else one for one in missing)
            if said != told and time.monotonic() - since > PATIENCE_S:
                told = said
                report(f"waiting for {said}")
            seen |= self._there(members)
        for ref in failures:
            ray.cancel(ref)

    def _there(self, members: Iterable[Member]) -> set[str]:
        """Names of the present ones."""
        there: set[str] = set()
        for number, report in enumerate(asyncio.run(self._ask())):
            if report is not None:
                there.add(f"{VERIFIER}-{number + 1}")
                there.update(drafter.actor_id for drafter in report.drafters)
                there.update([f"controller-{number + 1}"] if report.controller is not None else [])
        for one in members:
            if isinstance(one.settings, GatewaySettings):
                there.update([one.name] if asyncio.run(healthy_pid(*reachable_http(one.settings.http))) else [])
        return there

    async def _ask(self) -> list[StatusReport | None]:
        async def ask(address: str) -> StatusReport | None:
            try:
                async with AsyncClient(
                    address, key=self.key, server_key=self.server_key, timeout=PROBE_TIMEOUT_S
                ) as client:
                    return await client.status()
            except ConnectionLost:
                return None

        return list(await asyncio.gather(*map(ask, self.addresses)))


async def find(host: Any, but: str) -> str:
    """Ask a verifier's host where it is, for :class:`Places`."""
    asking = host.address.remote(but)
    try:
        return str(await asking)
    except asyncio.CancelledError:
        ray.cancel(asking)
        raise
