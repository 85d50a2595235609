"""Several models behind one port, loaded one at a time when a request names them."""

import asyncio
import gzip
import json
from contextlib import asynccontextmanager
from unittest.mock import patch

import httpx2
import pytest
from starlette.requests import Request

from duoactor import AsyncClient
from duoactor.serve.app import make_app
from duoactor.serve.bodies import look_into_body, read_body
from duoactor.serve.gateway import Gateway
from duoactor.serve.settings import GatewaySettings
from duoactor.serve.several import Models, guarded
from protocols.errors import ModelError
from tests.serve.gateway import TURNS
from tests.world.cluster import Cluster


class Shelf:
    """Models of the toy language; notes what is loaded and unloaded."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def load(self, name):
        @asynccontextmanager
        async def loaded():
            self.events.append(f"+{name}")
            async with Cluster() as cluster:
                client = AsyncClient(cluster.settings.bind, network=cluster.network.host("gateway"), timeout=60)
                gateway = Gateway(client, (name,))
                yield make_app(gateway)
                await gateway.aclose()
            self.events.append(f"-{name}")

        return loaded

    @asynccontextmanager
    async def broken(self):
        raise ModelError("its file is gone")
        yield


@asynccontextmanager
async def shelved(idle_s=0.0, keys=(), origins=()):
    shelf = Shelf()
    models = Models({"small": shelf.load("small"), "big": shelf.load("big"), "broken": shelf.broken}, idle_s)
    transport = httpx2.ASGITransport(guarded(models, GatewaySettings(allowed_host=("x",), cors_origin=origins), keys))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x", timeout=60) as http:
        yield shelf, http
    await models.aclose()


def ask(http, model, headers=None, **more):
    body = {"model": model, "messages": TURNS, "max_tokens": 4, **more}
    return http.post("/v1/chat/completions", json=body, headers=headers)


async def test_models_are_listed_loaded_on_demand_and_changed_when_answers_have_ended():
    async with shelved() as (shelf, http):
        assert [one["id"] for one in (await http.get("/v1/models")).json()["data"]] == ["small", "big", "broken"]
        assert (await http.get("/metrics")).status_code == 503 and shelf.events == []
        both = await asyncio.gather(ask(http, "small", max_tokens=60), ask(http, "big"), ask(http, "small"))
        assert [(one.status_code, one.json()["model"]) for one in both] == [
            (200, "small"),
            (200, "big"),
            (200, "small"),
        ]
        assert shelf.events == ["+small", "-small", "+big"]  # both for the small one went in together
        unnamed = await ask(http, "")
        assert unnamed.json()["model"] == "big"
        assert (await http.get("/health")).json()["loaded"] == "big"
        assert (await http.get("/metrics")).status_code == 200
    assert shelf.events[-1] == "-big"


async def test_ollamas_paths_list_load_and_name_the_models():
    async with shelved() as (shelf, http):
        listed = (await http.get("/api/tags")).json()["models"]
        before = (await http.get("/api/ps")).json()["models"]
        asked = {"model": "big:latest", "messages": TURNS, "options": {"num_predict": 3}, "stream": False}
        idle = await http.post("/api/show", json={"model": "small:latest"})
        made = await http.post("/api/chat", json=asked)
        shown = [await http.post("/api/show", json={"model": name}) for name in ("small", "big", "other")]
        after = (await http.get("/api/ps")).json()["models"]
    assert [one["name"] for one in listed] == ["small:latest", "big:latest", "broken:latest"]
    assert idle.json()["model_info"]["general.basename"] == "small"
    assert [one.status_code for one in shown] == [200, 200, 404]
    assert "duoactor.context_length" in shown[1].json()["model_info"]
    assert made.json()["eval_count"] == 3 and shelf.events[0] == "+big"
    assert (before, [one["name"] for one in after]) == ([], ["big:latest"])


async def test_requests_for_two_models_in_turn_change_the_model_once_and_not_at_each():
    async with shelved() as (shelf, http):
        answers = await asyncio.gather(*(ask(http, ("small", "big")[at % 2]) for at in range(10)))
    assert [one.json()["model"] for one in answers] == ["small", "big"] * 5
    assert shelf.events == ["+small", "-small", "+big", "-big"]


async def test_requests_for_the_loaded_model_go_first_for_a_bounded_time_only():
    """Where that time is over, a new request for the loaded model waits behind the one for another."""
    async with shelved() as (shelf, http):
        with patch("duoactor.serve.several.TURN_S", -1.0):
            answers = await asyncio.gather(ask(http, "small", max_tokens=60), ask(http, "big"), ask(http, "small"))
    assert [one.json()["model"] for one in answers] == ["small", "big", "small"]
    assert shelf.events == ["+small", "-small", "+big", "-big", "+small", "-small"]


async def test_a_model_whose_only_client_left_while_it_was_loaded_is_unloaded_as_any():
    shelf = Shelf()
    models = Models({"small": shelf.load("small")}, 0.01)
    asked = asyncio.create_task(models._turn("small"))
    while not shelf.events:
        await asyncio.sleep(0)
    asked.cancel()
    while shelf.events != ["+small", "-small"]:
        await asyncio.sleep(0.01)
    await models.aclose()


async def test_nothing_is_loaded_for_a_client_that_left_while_it_waited():
    body = json.dumps({"model": "big", "messages": TURNS}).encode()
    gone = asyncio.Event()

    async def receive():
        if sent:
            return sent.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        raise AssertionError(message)

    sent = [{"type": "http.request", "body": body, "more_body": False}]
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "query_string": b""}
    shelf, held = Shelf(), asyncio.Event()

    @asynccontextmanager
    async def slow():
        shelf.events.append("+slow")

        async def app(scope, receive, send):
            await held.wait()

        yield app
        shelf.events.append("-slow")

    models = Models({"slow": slow, "big": shelf.load("big")}, 0.0)
    first = asyncio.create_task(models._turn("slow"))
    await first
    waiting = asyncio.create_task(models({**scope, "server": ("x", 80), "scheme": "http"}, receive, send))
    while not models._waiting:
        await asyncio.sleep(0)
    gone.set()
    await waiting
    models._leave()
    await models.aclose()
    assert shelf.events == ["+slow", "-slow"]


OPEN = ("/metrics", "/version", "/", "/page/x", "/openapi.json", "/health")
ODD = ("/v1/chat/completions/x", "/v1//chat/completions")  # paths that none answers


@pytest.mark.parametrize("keys", [(), ("k",)])
@pytest.mark.parametrize("path", [*OPEN, *ODD, "/ping", "/v1/models", "/live/swap", "/tokenize"])
async def test_only_paths_that_generate_load_a_model(path, keys):
    async with shelved(keys=keys) as (shelf, http):
        for method in ("POST", "PUT", "GET"):
            await http.request(
                method, path, json={"model": "big", "prompt": "x"}, headers={"authorization": "Bearer k"}
            )
        assert shelf.events == []


async def test_without_a_key_no_post_reaches_a_model():
    async with shelved(keys=("k",)) as (shelf, http):
        for path in (*OPEN, "/v1/chat/completions"):
            assert (await http.post(path, json={"model": "big"})).status_code == 401
        assert (await http.post("/ping", json={"model": "big"})).status_code == 200
        assert shelf.events == []


async def test_the_keys_of_all_models_are_counted_where_one_alone_may_give_orders():
    async with shelved(keys=("k", "other")) as (_, http):
        headers = {"authorization": "Bearer k"}
        await ask(http, "small", headers)
        assert (await http.post("/live/drain", json={"actor_id": "a"}, headers=headers)).status_code == 403


async def test_a_model_that_is_not_loaded_is_not_read_as_another():
    async with shelved() as (_, http):
        await ask(http, "small")
        other = await http.post("/tokenize", json={"model": "big", "prompt": "x"})
        own = await http.post("/tokenize", json={"model": "small", "prompt": "x"})
    assert (other.status_code, own.status_code) == (404, 200)


async def test_a_model_that_is_not_there_or_cannot_be_loaded_is_refused_and_the_next_request_goes_on():
    async with shelved() as (_, http):
        missing, broken = await ask(http, "other"), await ask(http, "broken")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert (broken.status_code, "its file is gone" in broken.json()["error"]["message"]) == (503, True)
        body = gzip.compress(json.dumps({"model": "big", "messages": TURNS, "max_tokens": 2}).encode())
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        packed = await http.post("/v1/chat/completions", content=body, headers=headers)
        assert (packed.status_code, packed.json()["model"]) == (200, "big")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"model": "\xff"}', b'{"a": ' + b"[" * 5_000, b"[]", b""])
async def test_a_body_that_names_no_model_as_json_does_is_a_400_of_the_model_that_would_answer(body):
    async with shelved() as (_, http):
        refused = await http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("the body ")


async def test_a_model_that_nobody_asks_for_is_unloaded():
    async with shelved(idle_s=0.05) as (shelf, http):
        await ask(http, "small")
        while shelf.events != ["+small", "-small"]:
            await asyncio.sleep(0.01)
        assert (await ask(http, "small")).status_code == 200


async def test_a_body_that_was_looked_into_is_there_for_the_app_and_not_for_as_long_as_its_answer_takes():
    async def receive():
        return {"type": "http.request", "body": sent.pop(), "more_body": False}

    sent, headers = [b'{"model": "small"}'], [(b"content-type", b"application/json")]
    request = Request({"type": "http", "headers": headers}, receive)
    assert await look_into_body(request) == b'{"model": "small"}'
    assert await read_body(Request(request.scope, receive)) == b'{"model": "small"}'
    assert request.scope["state"] == {}


async def test_a_body_that_was_read_is_not_kept():
    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
    assert await read_body(request) == b"{}"
    assert not request.scope.get("state")


@pytest.mark.parametrize("keys", [(), ("k",)])
async def test_a_page_may_ask_whether_it_may_call_while_no_model_is_loaded(keys):
    page = "https://app.example"
    asked = {"origin": page, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    async with shelved(keys=keys, origins=(page,)) as (shelf, http):
        before = await http.options("/v1/chat/completions", headers=asked)
        other = await http.options("/v1/chat/completions", headers={**asked, "origin": "https://evil.example"})
        assert shelf.events == []
        headers = {"origin": page, "authorization": "Bearer k"}
        unloaded = await http.get("/metrics", headers=headers)
        answer = await ask(http, "small", headers=headers)
    assert (before.status_code, before.headers["access-control-allow-origin"]) == (200, page)
    assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
    assert (unloaded.status_code, unloaded.headers["access-control-allow-origin"]) == (503, page)
    assert (answer.status_code, answer.headers.get_list("access-control-allow-origin")) == (200, [page])
