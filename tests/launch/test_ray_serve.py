"""The gateway as a deployment of Ray Serve: its options, what its ASGI app does with Serve's, and a small cluster where
streams outlive their verifier, and replicas end in order."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx2
import msgspec
import pytest

from tests.world.processes import below, free_port, runs, until

pytest.importorskip("ray.serve", reason="needs pip install 'duoactor[ray-serve]'")

import ray as real_ray
from ray import serve
from ray.cluster_utils import Cluster as Nodes
from starlette.testclient import TestClient

import duoactor.ray
from duoactor.launch.members import DRAFTER_RESOURCE
from duoactor.ray import serving
from duoactor.ray.serving import GatewayApp, sort_options
from duoactor.serve.settings import GatewaySettings
from protocols.errors import ConfigError

# --- options ---------------------------------------------------------------------------------------------------------


def test_options_are_the_gateways_and_those_of_a_deployment(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("second\n")
    settings, deployment = sort_options(
        {"api_key": "first", "api_key_file": str(file), "served_model_name": ["a", "b"], "num_replicas": 2}
    )
    assert settings == GatewaySettings(api_key=("first", "second"), served_model_name=("a", "b"))
    assert deployment.pop("ray_actor_options") == {"num_cpus": 0}
    assert deployment == {"name": "gateway", "num_replicas": 2, "max_ongoing_requests": 1000}


def test_what_a_deployment_reserves_and_takes_can_be_said():
    _, deployment = sort_options({"ray_actor_options": {"num_cpus": 0.5}, "max_ongoing_requests": 7})
    assert (deployment["ray_actor_options"], deployment["max_ongoing_requests"]) == ({"num_cpus": 0.5}, 7)
    _, deployment = sort_options({"ray_actor_options": {"resources": {"edge": 1}}})
    assert deployment["ray_actor_options"] == {"num_cpus": 0, "resources": {"edge": 1}}


@pytest.mark.parametrize("name", ["connect", "key", "server_key", "http"])
def test_what_is_found_on_the_cluster_is_refused(name: str):
    with pytest.raises(ConfigError, match=f"^{name} = 'x' has no meaning on Ray Serve, .*: leave it out$"):
        duoactor.ray.gateway("chat", **{name: "x"})


@pytest.mark.parametrize("call", [duoactor.ray.up, duoactor.ray.down])
def test_a_set_has_not_the_name_under_which_serve_keeps_its_own_actors(call):
    with pytest.raises(ConfigError, match="the name serve is that of Ray Serve's own actors"):
        call(name="serve")


def test_unknown_options_are_refused():
    with pytest.raises(ConfigError, match=r"^there is no option num_replica: "):
        duoactor.ray.gateway("chat", num_replica=2)
    with pytest.raises(ConfigError, match=r"^--share-caches: expected bool"):
        duoactor.ray.application({"name": "chat", "share_caches": "yes"})


# --- the app of a replica --------------------------------------------------------------------------------------------


@contextmanager
def replica(monkeypatch: pytest.MonkeyPatch, **settings) -> Iterator[tuple[TestClient, SimpleNamespace]]:
    """Below the route prefix /chat. No verifier answers."""
    cluster = SimpleNamespace(addresses=("tcp://127.0.0.1:1",), key="", server_key="", closed=False)
    cluster.close = lambda: setattr(cluster, "closed", True)
    monkeypatch.setattr(serving, "connect", lambda name: cluster)
    app = pickle.loads(pickle.dumps(GatewayApp("chat", GatewaySettings(**settings))))
    with TestClient(app, base_url="http://testserver/chat", root_path="/chat") as http:
        yield http, cluster


def test_what_needs_no_key_needs_none_below_a_route_prefix(monkeypatch: pytest.MonkeyPatch):
    with replica(monkeypatch, api_key=("k",)) as (http, cluster):
        assert http.get("http://testserver/chat/health").status_code == 503
        assert http.get("http://testserver/chat/v1/models").status_code == 401
        refusal = http.post("http://testserver/chat/v1/messages", json={}).json()
        assert refusal["type"] == "error"  # Anthropic's shape
        assert "duoactor" in http.get("http://testserver/chat").text
        assert not cluster.closed
    assert cluster.closed


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_replica_is_healthy_unless_another_would_do_better(replaced: bool):
    app = GatewayApp("chat", GatewaySettings())
    app._cluster = SimpleNamespace(replaced=lambda: replaced)
    held = SimpleNamespace(app=app)
    if not replaced:
        await serving.Replica.check_health(held)
        return
    with pytest.raises(ConfigError, match="the set of actors named chat was started anew"):
        await serving.Replica.check_health(held)


# --- a cluster -------------------------------------------------------------------------------------------------------

PROMPT = "Once upon a time"
TEXT = {"max_tokens": 400, "ignore_eos": True, "seed": 1, "temperature": 0.8}
KEY = {"authorization": "Bearer secret"}
HEALTH_S = 0.5


class Service:
    def __init__(self, nodes: Nodes, cluster: duoactor.ray.Cluster, http: httpx2.Client) -> None:
        self.nodes, self.cluster, self.http = nodes, cluster, http

    def ask(self, **changes) -> httpx2.Response:
        return self.http.post("/v1/completions", json={"prompt": PROMPT, **TEXT, **changes})

    @contextmanager
    def stream(self) -> Iterator[Iterator[str]]:
        with self.http.stream("POST", "/v1/completions", json={"prompt": PROMPT, **TEXT, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            yield (
                msgspec.json.decode(line[6:])["choices"][0]["text"]
                for line in answer.iter_lines()
                if line.startswith("data: {")
            )

    def verifier(self) -> int:
        (pid,) = [pid for pid in below(self.nodes.head_node.all_processes["raylet"][0].process.pid) if is_verifier(pid)]
        return pid


def is_verifier(pid: int) -> bool:
    try:
        return runs(pid, "verifier")
    except OSError:
        return False  # it has ended


def run_gateway(**options) -> None:
    serve.run(
        duoactor.ray.gateway(
            "chat",
            num_replicas=2,
            api_key="secret",
            served_model_name="mine",
            health_check_period_s=HEALTH_S,
            graceful_shutdown_wait_loop_s=0.1,
            **options,
        ),
        name="chat",
        route_prefix="/",
    )


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="ray-") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("TMPDIR", directory)  # the actors' too
        nodes = Nodes(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "resources": {DRAFTER_RESOURCE: 1}, "include_log_monitor": False},
        )
        try:
            real_ray.init(address=nodes.address, log_to_driver=False)
            port = free_port()
            serve.start(http_options={"port": port})
            with duoactor.ray.up(verifiers=1, drafters=1, name="chat") as cluster:
                run_gateway()
                with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=KEY, timeout=120) as http:
                    yield Service(nodes, cluster, http)
        finally:
            serve.shutdown()
            duoactor.ray.down("chat")
            real_ray.shutdown()
            nodes.shutdown()
        assert list(Path(directory).glob("duoactor-*")) == []  # keys


@pytest.fixture(scope="module")
def text(service: Service) -> str:
    with service.cluster.client() as client:
        return client.generate(PROMPT, method="vanilla", **TEXT).text


@pytest.mark.processes
def test_the_text_is_the_verifiers_own_whole_or_streamed_from_each_replica(service: Service, text: str):
    assert service.ask().json()["choices"][0]["text"] == text
    with service.stream() as pieces:
        assert "".join(pieces) == text
    until(lambda: len({service.http.get("/health").json()["pid"] for _ in range(8)}) == 2, "the other replica")
    assert [one["id"] for one in service.http.get("/v1/models").json()["data"]] == ["mine"]


@pytest.mark.processes
def test_a_wrong_key_is_refused(service: Service):
    answer = service.http.post("/v1/completions", json={"prompt": PROMPT}, headers={"authorization": "Bearer guess"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.processes
def test_leaving_a_stream_ends_its_request(service: Service):
    with service.cluster.client() as client:
        with service.stream() as pieces:
            next(pieces)
            assert len(client.status().requests) == 1
        until(lambda: not client.status().requests, "the end of the request")


@pytest.mark.processes
def test_a_stream_goes_on_with_the_same_text_when_its_verifier_is_killed(service: Service, text: str):
    pid, got = service.verifier(), ""
    with service.stream() as pieces:
        for piece in pieces:
            got += piece
            if pid and len(got) > 40:
                os.kill(pid, signal.SIGKILL)
                pid = 0
    assert not pid and got == text


@pytest.mark.processes
def test_a_stream_ends_with_its_text_when_its_replica_is_to_go(service: Service, text: str):
    with service.stream() as pieces:
        got = next(pieces)
        serve.delete("chat", _blocking=False)
        assert got + "".join(pieces) == text
    run_gateway()


@pytest.mark.processes
def test_replicas_find_a_set_that_is_started_anew(service: Service, text: str):
    """They keep answering while there is none."""
    duoactor.ray.down("chat")
    answer = service.ask()
    assert answer.status_code == 503 and "no verifier answers" in answer.json()["error"]["message"]
    with duoactor.ray.up(verifiers=1, drafters=1, name="chat"):
        until(lambda: service.ask().status_code == 200, "replicas with the new keys")
        assert service.ask().json()["choices"][0]["text"] == text
