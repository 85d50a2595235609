"""Actors on a Ray cluster of several nodes of this host; nodes are killed, as by a loss of power, in mid-stream."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.world.processes import below, runs, until

pytest.importorskip("ray", reason="needs pip install 'duoactor[ray]'")
pytestmark = pytest.mark.processes

import ray as real_ray  # noqa: E402
from ray.cluster_utils import Cluster as Nodes  # noqa: E402

import duoactor.ray  # noqa: E402
from duoactor.launch.members import DRAFTER_RESOURCE  # noqa: E402
from duoactor.ray.cluster import hosts_of  # noqa: E402

TEXT = {"max_tokens": 400, "ignore_eos": True, "seed": 1}
SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
WORKER = {"num_cpus": 1, "resources": {DRAFTER_RESOURCE: 1}, "include_log_monitor": False}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A head where nothing is placed, and three nodes with a CPU each: an actor has a node of its own, one is left."""
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  else workers give way to whatever runs beside them
    nodes = Nodes(
        initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": SOON, "include_log_monitor": False}
    )
    try:
        for _ in range(3):
            nodes.add_node(wait=False, **WORKER)
        real_ray.init(address=nodes.address, log_to_driver=False)
        yield nodes
    finally:
        real_ray.shutdown()
        nodes.shutdown()


def test_two_verifiers_and_three_drafters_come_up_and_give_the_same_text(nodes: Nodes):
    node = nodes.add_node(wait=False, **WORKER | {"num_cpus": 2, "resources": {DRAFTER_RESOURCE: 2}})
    try:
        with duoactor.ray.up(verifiers=2, drafters=3, name="two") as cluster:
            texts, drafters = [], []
            for address in cluster.addresses:
                with duoactor.Client(address, key=cluster.key, server_key=cluster.server_key) as client:
                    drafters += [drafter.actor_id for drafter in client.status().drafters]
                    texts += [
                        client.generate("Once", method=method, **TEXT).token_ids for method in ("vanilla", "tree")
                    ]
        assert len(set(texts)) == 1 and len(texts) == 4
        assert sorted(drafters) == ["drafter-1", "drafter-2", "drafter-3"]
    finally:
        duoactor.ray.down("two")
        nodes.remove_node(node)


@pytest.fixture(scope="module")
def cluster(nodes: Nodes) -> Iterator[duoactor.ray.Cluster]:
    with duoactor.ray.up(verifiers=1, drafters=1) as cluster:
        yield cluster
    duoactor.ray.down()
    assert hosts_of("duoactor") == {}


def lose_node(nodes: Nodes, role: str) -> None:
    """The node that this actor is on ends at once, with all that runs there."""
    for node in nodes.worker_nodes:
        pids = below(node.all_processes["raylet"][0].process.pid)
        if any(runs(pid, role) for pid in pids):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            nodes.remove_node(node, allow_graceful=False)
            nodes.add_node(wait=False, **WORKER)
            return
    raise AssertionError(f"no node has the {role}")


def drafter_pids(client: duoactor.Client) -> set[int]:
    return {drafter.pid for drafter in client.status().drafters}


@pytest.mark.parametrize("role", ["drafter", "verifier"])
def test_a_stream_goes_on_with_the_same_text_when_a_node_is_lost(
    nodes: Nodes, cluster: duoactor.ray.Cluster, role: str
):
    with cluster.client() as client:
        whole = client.generate("Once upon a time", method="vanilla", **TEXT).token_ids
        before, incarnation = drafter_pids(client), client._client.welcome.incarnation
        got: tuple[int, ...] = ()
        lost = False
        for chunk in client.stream("Once upon a time", **TEXT):
            got += chunk.token_ids
            if len(got) > 40 and not lost:
                lose_node(nodes, role)
                lost = True
        assert lost and got == whole
        assert (client._client.welcome.incarnation != incarnation) is (role == "verifier")  # it was in mid-stream
        until(lambda: drafter_pids(client) - before, "the drafter on another node, or with the verifier's new place")
        assert client.generate("Once upon a time", method="duodecoding", **TEXT).token_ids == whole
