"""Verifiers and drafters on a Ray cluster. Ray places, names and restarts them; tokens stay on ZeroMQ.

import duoactor.ray

cluster = duoactor.ray.up(target="Qwen/Qwen3-8B", draft="Qwen/Qwen3-0.6B", verifiers=2, drafters=8)
with cluster, cluster.client() as client:
    print(client.generate("def factorial(n):").text)
duoactor.ray.down()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from protocols.extras import install

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ImportError:
    raise ImportError(f"Ray is not installed: {install('ray')}") from None

from actors.settings import DrafterSettings, VerifierSettings
from duoactor.config import options as options_of
from duoactor.config import prefixed
from duoactor.launch.child import GATEWAY, STOP_S
from duoactor.launch.host import Host
from duoactor.launch.issue_keys import VERIFIER, issue_keys
from duoactor.launch.members import Member, plan_members
from duoactor.launch.wanted import UP_DECIDES, Wanted, read_wanted
from duoactor.ray.cluster import NAME, Cluster, check_name, connect, connect_to_ray, find, hosts_of
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError
from protocols.messages import Role
from protocols.security import KeyRole

__all__ = ["Cluster", "connect", "down", "start", "up"]


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
    """Start a set of actors on a Ray cluster, and return once they are ready. They outlive this process: :func:`down`
    ends them. The cluster: this process's present connection, else ``RAY_ADDRESS``, else this host's.

    ``config``: a ``duo.toml``; ``options``: its keys, the drafters' beginning with ``draft_``. ``http``: where a
    gateway on this node listens. ``name``: of the set, their Ray namespace; ``report`` gets what is waited for.
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
    check_name(name)
    connect_to_ray()
    members = plan_members(wanted, verifiers, has_gpus=ray.cluster_resources().get("GPU", 0) > 0)
    if hosts_of(name):
        raise ConfigError(
            f"a set of actors named {name} is on this cluster already: end it with "
            f"`python -c \"import duoactor.ray; duoactor.ray.down('{name}')\"`"
        )
    try:
        _place(members, name, log_flags)
        cluster = connect(name)
        try:
            cluster.wait_for(members, report)
        except BaseException:
            cluster.close()
            raise
    except BaseException:
        down(name)
        raise
    return cluster


def down(name: str = NAME) -> None:
    """End every actor of a set: the verifiers first, which tell their clients that they go."""
    check_name(name)
    connect_to_ray()
    hosts = hosts_of(name).values()
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


def _check_names(options: dict[str, Any]) -> None:
    known = {option.name for option in options_of(VerifierSettings)}
    known |= {prefixed(one, "draft_") for one in options_of(DrafterSettings) if one.name not in UP_DECIDES}
    known |= {option.name for option in options_of(GatewaySettings)}
    for name in options:
        if name not in known:
            raise ConfigError(f"there is no option {name}: docs/configuration.md lists them")


def _group(name: str) -> str:
    return f"{name}-verifiers"


def _place(members: Sequence[Member], name: str, log_flags: Sequence[str]) -> None:
    """Ask Ray for every actor. Verifiers are spread over nodes, each with its controller on the same node."""
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
            actor.remote(
                one, keys[role], [partial(find, verifiers[number]) for number in one.verifiers], None, log_flags
            )
