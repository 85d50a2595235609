"""Verifiers and drafters on a Ray cluster. Ray places, names and restarts them; tokens stay on ZeroMQ.

import duoactor.ray

cluster = duoactor.ray.up(target="Qwen/Qwen3-8B", draft="Qwen/Qwen3-0.6B", verifiers=2, drafters=8)
with cluster, cluster.client() as client:
    print(client.generate("def factorial(n):").text)
duoactor.ray.down()
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from actors.settings import DrafterSettings, VerifierSettings
from duoactor.client.async_client import AsyncClient
from duoactor.client.sync_client import Client
from duoactor.config import options as options_of
from duoactor.config import prefixed
from duoactor.launch.child import GATEWAY, STOP_S
from duoactor.launch.deployment import reachable_http
from duoactor.launch.forwarder import Forwarder
from duoactor.launch.health import healthy_pid
from duoactor.launch.host import Host
from duoactor.launch.issue_keys import VERIFIER, KeyFiles, issue_keys
from duoactor.launch.members import Member, plan_members
from duoactor.launch.supervisor import POLL_AGAIN_S, LaunchError
from duoactor.launch.wanted import UP_DECIDES, Wanted, read_wanted
from duoactor.serve.settings import GatewaySettings
from protocols.enumerations import KeyRole
from protocols.errors import ConfigError, ConnectionLost
from protocols.messages import Role, StatusReport
from protocols.security import PUBLIC_SUFFIX, SECRET_SUFFIX

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ImportError:
    raise ImportError("Ray is not installed: pip install 'duoactor[ray]'") from None

NAME = "duoactor"
# Ray takes 15 to 30 s to find that a node is gone; then the target is loaded elsewhere.
RECONNECT_TIMEOUT_S = 300.0
# An answer goes through a forwarder and a handshake, from a verifier that computes on a node that may do much else.
PROBE_TIMEOUT_S = 5.0
PATIENCE_S = 10.0  # before it is said what is waited for, and from then on


def up(
    *,
    config: str = "",
    verifiers: int = 1,
    drafters: int | None = None,
    http: str | None = None,
    name: str = NAME,
    report: Callable[[str], None] = print,
    **options: Any,
) -> Cluster:
    """Start a set of actors on the Ray cluster that this process is connected to, else on that of this host or
    ``RAY_ADDRESS``, and return once they are ready. They outlive this process: :func:`down` ends them.

    ``config``: a ``duo.toml``; ``options``: its keys, the drafters' beginning with ``draft_``. ``http``: where a
    gateway on this node listens. ``name``: of the set, their Ray namespace; ``report`` is told what is waited for.
    Raises ConfigError, or LaunchError with the sentence of an actor that cannot run.
    """
    _check_names(options)
    return start(read_wanted(config, options, drafters=drafters, http=http), verifiers, name, report)


def start(
    wanted: Wanted,
    verifiers: int,
    name: str = NAME,
    report: Callable[[str], None] = print,
    log_flags: Sequence[str] = (),
) -> Cluster:
    """:func:`up`, of settings. ``log_flags`` go to every actor's process."""
    _connect_to_ray()
    members = plan_members(wanted, verifiers, has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
    if _hosts(name):
        raise ConfigError(
            f"a set of actors named {name} is on this cluster already: end it with "
            f"`python -c \"import duoactor.ray; duoactor.ray.down('{name}')\"`"
        )
    try:
        _place(members, name, log_flags)
        cluster = connect(name)
        try:
            cluster._wait_for(members, report)
        except BaseException:
            cluster.close()
            raise
    except BaseException:
        down(name)
        raise
    return cluster


def connect(name: str = NAME) -> Cluster:
    """A running set of actors, from any process on the Ray cluster. ConfigError if there is none of that name."""
    _connect_to_ray()
    hosts = _hosts(name)
    if not hosts:
        raise ConfigError(f"no set of actors named {name} is on this Ray cluster: start one with duoactor.ray.up")
    return Cluster(hosts)


def down(name: str = NAME) -> None:
    """End every actor of a set: the verifiers first, which tell their clients that they go."""
    _connect_to_ray()
    hosts = _hosts(name).values()
    roles = {host.role.remote(): host for host in hosts}
    there, _ = ray.wait(list(roles), num_returns=len(roles), timeout=STOP_S) if roles else ((), ())
    by_role = {ref: ray.get(ref) for ref in there}
    for first in (True, False):
        stopping = [roles[ref].stop.remote() for ref, role in by_role.items() if (role == Role.VERIFIER) is first]
        ray.wait(stopping, num_returns=len(stopping)) if stopping else None
    for host in hosts:
        ray.kill(host)
    for key, group in placement_group_table().items():
        if group["name"] == _group(name):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(key)))


class Cluster:
    """A set of actors as this process reaches it: verifiers have an address on this host that stays the same when Ray
    starts them again elsewhere. Leaving ``with`` closes these; the actors stay (:func:`down`)."""

    def __init__(self, hosts: dict[str, Any]) -> None:
        self.hosts = hosts  # Ray actors by name
        names = [name for name in hosts if name.startswith(f"{VERIFIER}-")]
        self._verifiers = [hosts[name] for name in sorted(names, key=lambda name: (len(name), name))]
        self._directory = tempfile.TemporaryDirectory(prefix="duoactor-")
        keys: KeyFiles = ray.get(self._verifiers[0].keys.remote())
        keys.write(self._directory.name)
        self.key = str(Path(self._directory.name) / (KeyRole.OPERATOR + SECRET_SUFFIX))
        self.server_key = str(Path(self._directory.name) / (VERIFIER + PUBLIC_SUFFIX))
        self.addresses: tuple[str, ...] = ()
        self._open = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._forward(),), daemon=True)
        self._thread.start()
        self._open.wait()

    async def _forward(self) -> None:
        async with AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(Forwarder(_Find(one))) for one in self._verifiers]
            self.addresses = tuple(port.address for port in ports)
            self._open.set()
            await self._closed.wait()

    @property
    def address(self) -> str:
        """Of all verifiers, as a client or ``--connect`` takes it on this host."""
        return ",".join(self.addresses)

    def client(self, reconnect_timeout: float = RECONNECT_TIMEOUT_S) -> Client:
        """A client of all verifiers. Its streams wait so many seconds for one that is started again elsewhere."""
        return Client(self.addresses, key=self.key, server_key=self.server_key, reconnect_timeout=reconnect_timeout)

    def actors(self) -> list[dict[str, str]]:
        """Role, name, node and model of each."""
        return list(ray.get([host.describe.remote() for host in self.hosts.values()]))

    def close(self) -> None:
        """Twice does no harm."""
        if not self._closed.is_set():
            self._loop.call_soon_threadsafe(self._closed.set)
            self._thread.join()
            self._loop.close()
            self._directory.cleanup()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _wait_for(self, members: Sequence[Member], report: Callable[[str], None]) -> None:
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
        """Names of those that are there now."""
        there: set[str] = set()
        for number, report in enumerate(asyncio.run(self._ask())):
            if report is not None:
                there.add(f"{VERIFIER}-{number + 1}")
                there.update(drafter.actor_id for drafter in report.drafters)
                there.update([f"controller-{number + 1}"] if report.controller_pid else [])
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


class _Find:
    """Asks a verifier's host where it is: the :class:`Forwarder`'s ``find``."""

    def __init__(self, host: Any) -> None:
        self._host = host

    async def __call__(self, but: str) -> str:
        asking = self._host.address.remote(but)
        try:
            return str(await asking)
        except asyncio.CancelledError:
            ray.cancel(asking)
            raise


def _connect_to_ray() -> None:
    if not ray.is_initialized():
        try:
            ray.init(address="auto", logging_level="ERROR")
        except ConnectionError:
            raise ConfigError(
                "no Ray cluster was found: start one with `ray start --head`, or set RAY_ADDRESS"
            ) from None


def _check_names(options: dict[str, Any]) -> None:
    known = {option.name for option in options_of(VerifierSettings)}
    known |= {prefixed(one, "draft_") for one in options_of(DrafterSettings) if one.name not in UP_DECIDES}
    known |= {option.name for option in options_of(GatewaySettings)}
    for name in options:
        if name not in known:
            raise ConfigError(f"there is no option {name}: docs/configuration.md lists them")


def _hosts(name: str) -> dict[str, Any]:
    """The Ray actors of a set, by name."""
    listed = ray.util.list_named_actors(all_namespaces=True)
    return {one["name"]: ray.get_actor(one["name"], namespace=name) for one in listed if one["namespace"] == name}


def _group(name: str) -> str:
    return f"{name}-verifiers"


def _place(members: Sequence[Member], name: str, log_flags: Sequence[str]) -> None:
    """Ask Ray for every actor. Verifiers are spread over nodes, each with its controller beside it."""
    keys = issue_keys()
    bundles = [{"CPU": one.cpus, "GPU": one.gpus} for one in members if one.role is Role.VERIFIER]
    group = placement_group(
        [{what: count for what, count in bundle.items() if count} for bundle in bundles],
        strategy="SPREAD",
        name=_group(name),
        lifetime="detached",
    )
    verifiers: list[Any] = []
    for one in members:
        strategy: Any = "SPREAD"
        if one.role in (Role.VERIFIER, Role.CONTROLLER):
            strategy = PlacementGroupSchedulingStrategy(group, one.verifiers[0])
        elif one.role == GATEWAY:
            strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(Host).options(
            name=one.name,
            namespace=name,
            lifetime="detached",
            max_restarts=-1,
            max_task_retries=-1,
            num_cpus=one.cpus,
            num_gpus=one.gpus,
            resources=dict(one.resources),
            scheduling_strategy=strategy,
        )
        if one.role is Role.VERIFIER:
            verifiers.append(actor.remote(one, keys[VERIFIER], (), keys[KeyRole.OPERATOR], log_flags))
        else:
            role = KeyRole.OPERATOR if one.role == GATEWAY else str(one.role)
            actor.remote(one, keys[role], [_Find(verifiers[number]) for number in one.verifiers], None, log_flags)
