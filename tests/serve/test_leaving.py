"""A gateway that is told to leave: what is under way ends, what cannot end is told so, and nothing is a traceback."""

import asyncio
import gc
import json
import logging
import socket

import httpx2
import pytest

from duoactor.client.async_client import AsyncClient
from duoactor.serve.app import make_app
from duoactor.serve.gateway import Gateway
from duoactor.serve.start import listen, serve
from duoactor.serve.stream import EventStream
from tests.serve.gateway import LANGUAGE, TURNS, served
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage
from tests.world.network import MemoryNetwork

CHAT = "/v1/chat/completions"
LONG = {"messages": TURNS, "max_tokens": 4000, "ignore_eos": True}
SLOW = {"language": LANGUAGE, "forward_s": 0.002}


@pytest.fixture(autouse=True)
def _no_client_of_an_earlier_test():
    """Whatever an earlier test left open would say so in the middle of one of these, whenever it is collected."""
    gc.collect()


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr("duoactor.serve.start.GRACE_S", 0.1)
    monkeypatch.setattr("duoactor.serve.start.LAST_S", 60)


def stop(gateway) -> asyncio.Task:
    """What SIGTERM does."""
    gateway.stop.set()
    return gateway.serving


async def test_answers_that_do_not_end_in_time_are_a_503_and_a_last_event(hurried, caplog):
    async with served(Cluster(**SLOW)) as gateway:
        whole = asyncio.create_task(gateway.post(CHAT, **LONG))
        streams = [
            asyncio.create_task(gateway.post(path, stream=True, model="toy", **{**LONG, **more}))
            for path, more in ((CHAT, {}), ("/v1/messages", {"ignore_eos": None}))
        ]
        while len(gateway.gateway._open) < 3 or gateway.cluster.verifier.state.counters["generation_tokens"] < 20:
            await asyncio.sleep(0.005)
        await stop(gateway)
        answer = await whole
        texts = [(await one).text for one in streams]
    assert answer.status_code == 503 and "shutting down" in answer.json()["error"]["message"]
    assert "retry-after" in answer.headers
    last, done = texts[0].strip().split("\n\n")[-2:]
    assert "shutting down" in json.loads(last.removeprefix("data: "))["error"]["message"]
    assert done == "data: [DONE]"
    kind, data = texts[1].strip().split("\n\n")[-1].split("\n")
    assert kind == "event: error" and json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


async def test_short_answers_still_end_and_new_questions_are_refused_meanwhile(monkeypatch):
    monkeypatch.setattr("duoactor.serve.start.GRACE_S", 600)  # how much is enough is not the question
    async with served(Cluster(**SLOW)) as gateway:
        running = asyncio.create_task(gateway.post(CHAT, **{**LONG, "max_tokens": 200}))
        while not gateway.gateway._open:
            await asyncio.sleep(0.005)
        leaving = stop(gateway)
        while not gateway.gateway.draining:
            await asyncio.sleep(0)
        refused, health = await gateway.chat(), await gateway.request("GET", "/health")
        answer = await running
        await leaving
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 200
    assert (refused.status_code, health.status_code) == (503, 503)


async def test_a_question_that_waits_for_a_verifier_is_a_503_when_the_gateway_leaves(caplog):
    client = AsyncClient("memory://nobody", network=MemoryNetwork().host("gateway"), timeout=60)
    gateway, stopping = Gateway(client), asyncio.Event()
    with listen("127.0.0.1:0") as listener:
        serving = asyncio.create_task(serve(gateway, make_app(gateway), listener, stopping))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        body = json.dumps({"messages": TURNS}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
        for _ in range(20):
            await asyncio.sleep(0.01)
        stopping.set()
        answer = (await reader.read()).decode()
        await serving
        writer.close()
    assert answer.startswith("HTTP/1.1 503")
    assert "shutting down" in json.loads(answer.rpartition("\r\n")[2])["error"]["message"]
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


async def test_health_does_not_wait_for_a_verifier_that_is_not_there(monkeypatch):
    monkeypatch.setattr("duoactor.serve.gateway.HEALTH_TIMEOUT_S", 0.02)
    client = AsyncClient("memory://nobody", network=MemoryNetwork().host("gateway"), timeout=1000)
    gateway, stopping = Gateway(client), asyncio.Event()
    with listen("127.0.0.1:0") as listener:
        serving = asyncio.create_task(serve(gateway, make_app(gateway), listener, stopping))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = (await reader.read()).decode()
        stopping.set()
        await serving
        writer.close()
    assert answer.startswith("HTTP/1.1 503")


async def test_a_client_that_leaves_before_the_first_byte_is_sent_ends_its_answer():
    ended = []

    async def events():
        try:
            yield b"first", False
            yield b"second", True
        finally:
            ended.append(True)

    async def gone():
        return {"type": "http.disconnect"}

    async def send(message):
        await asyncio.sleep(3600)

    made = events()
    await EventStream(*await anext(made), made)({"type": "http"}, gone, send)
    assert ended == [True]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
async def test_an_answer_that_nobody_reads_gives_way_and_goes_on_once_it_is_read(path):
    body = {"model": "toy", "temperature": 0, "max_tokens": 1900, "messages": TURNS}
    if path == "/v1/responses":
        body = {"model": "toy", "temperature": 0, "max_output_tokens": 1900, "input": "Hello"}
    cluster = Cluster(language=ToyLanguage(eos_rate=0.0))
    little = httpx2.AsyncHTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    async with served(cluster) as gateway, httpx2.AsyncClient(base_url=gateway.url, transport=little) as http:
        state = cluster.verifier.state
        counters = state.counters
        read = said(await gateway.post(path, **body, stream=True))
        before = counters["generation_tokens"]
        async with http.stream("POST", path, json={**body, "stream": True}) as answer:
            while counters["generation_tokens"] == before or state.requests:
                await asyncio.sleep(0.01)
            assert counters["generation_tokens"] - before < before / 2
            await answer.aread()
            late = said(answer)
    assert late == read and len(read) == before


def said(answer: httpx2.Response) -> str:
    """The text of a stream's events."""
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
    pieces = [one["choices"][0]["delta"].get("content") or "" for one in events if one.get("choices")]
    pieces += [one["delta"].get("text", "") for one in events if one.get("type") == "content_block_delta"]
    pieces += [one["delta"] for one in events if one.get("type") == "response.output_text.delta"]
    return "".join(pieces)
