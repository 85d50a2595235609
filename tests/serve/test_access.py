"""Who may call, and whether anybody answers: keys, web origins, health, draining."""

import asyncio
from datetime import datetime

import anthropic
import pytest
from starlette.responses import Response

from duoactor.client.async_client import AsyncClient
from duoactor.serve.auth import LocalGuard, read_keys
from duoactor.serve.gateway import REPORT_S
from duoactor.serve.settings import GatewaySettings, parse_http
from duoactor.serve.several import guarded
from duoactor.serve.start import listen
from protocols.errors import ConfigError
from protocols.messages import StatusReport
from tests.serve.gateway import LANGUAGE, TURNS, served
from tests.world.cluster import Cluster


async def test_without_a_key_nothing_is_told_but_health():
    async with served(keys=("one", "two")) as gateway:
        for headers, status in [
            ({}, 401),
            ({"authorization": "Bearer three"}, 401),
            ({"authorization": "Bearer"}, 401),
            ({"authorization": "Basic one"}, 401),
            ({"authorization": "Bearer one"}, 200),
            ({"authorization": "bearer two"}, 200),
            ({"x-api-key": "two"}, 200),
            ({"authorization": "Bearer three", "x-api-key": "two"}, 200),
            ({"authorization": "Bearer one", "x-api-key": "three"}, 200),
            ({"authorization": "Bearer three", "x-api-key": "four"}, 401),
        ]:
            answer = await gateway.request("GET", "/v1/models", headers=headers)
            assert answer.status_code == status, headers
            if status == 401:
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        assert (await gateway.request("GET", "/health")).status_code == 200
        assert (await gateway.request("POST", "/v1/nothing")).status_code == 401


def test_keys_come_from_flags_and_a_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# mine\nalpha\n\n beta \n")
    assert read_keys(GatewaySettings(api_key=("k",), api_key_file=str(file))) == ("k", "alpha", "beta")
    file.write_text("# none\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(GatewaySettings(api_key_file=str(file)))
    with pytest.raises(ConfigError, match=r"nothing cannot be read \(No such file or directory\): give --api-key-file"):
        read_keys(GatewaySettings(api_key_file=str(tmp_path / "nothing")))


def test_a_file_of_keys_may_begin_with_an_editors_mark_of_its_encoding(tmp_path):
    file = tmp_path / "keys"
    file.write_text("alpha\n", encoding="utf-8-sig")
    assert read_keys(GatewaySettings(api_key_file=str(file))) == ("alpha",)


@pytest.mark.parametrize("key", ["schlüssel", "two words", "bell\x07", "\ufeffk"])
def test_a_key_that_no_client_can_send_is_refused_at_the_start(key, tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"alpha\n{key}\n", encoding="utf-8")
    for settings in (GatewaySettings(api_key=("k", key)), GatewaySettings(api_key_file=str(file))):
        with pytest.raises(ConfigError, match="API key 2 holds a space or a character beyond ASCII"):
            read_keys(settings)


def test_an_empty_key_which_would_admit_everybody_is_refused():
    with pytest.raises(ConfigError, match="an API key is empty"):
        read_keys(GatewaySettings(api_key=("k", "")))


@pytest.mark.parametrize(("origins", "expected"), [((), None), (("https://app.example",), "https://app.example")])
async def test_pages_from_elsewhere_may_call_only_if_their_origin_is_named(origins, expected):
    async with served(origins=origins, keys=("k",)) as gateway:
        asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
        before = await gateway.request("OPTIONS", "/v1/chat/completions", headers=asked)
        answer = await gateway.request(
            "GET", "/v1/models", headers={"origin": "https://app.example", "authorization": "Bearer k"}
        )
    assert before.headers.get("access-control-allow-origin") == expected
    assert answer.headers.get("access-control-allow-origin") == expected


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://app.example/chat", ""])
def test_what_no_browser_calls_an_origin_is_refused_at_the_start(origin):
    with pytest.raises(ConfigError, match="is no web origin: give --cors-origin one"):
        guarded(Response(), GatewaySettings(cors_origin=("*", "https://x:8080", origin)), ())


@pytest.mark.parametrize(
    ("host", "server", "status"),
    [
        ("localhost:8000", "127.0.0.1", 200),
        ("LOCALHOST", "127.0.0.1", 200),
        ("app.localhost", "127.0.0.1", 200),
        ("127.0.0.1:8000", "127.0.0.1", 200),
        ("[::1]:8000", "::1", 200),
        ("box.example:8000", "127.0.0.1", 200),
        ("app.example", "127.0.0.1", 200),
        ("evil.example:8000", "127.0.0.1", 403),
        ("evil.example", "::1", 403),
        ("localhost.evil.example", "127.0.0.1", 403),
        ("[", "127.0.0.1", 403),
        ("", "127.0.0.1", 403),
        ("evil.example", "192.168.1.2", 200),
    ],
)
async def test_without_keys_a_page_cannot_call_under_a_name_of_its_own(host, server, status):
    assert await passed("GET", server, host=host) == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", 200),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:3000", 200),
        ("http://box.example:8000", 200),
        ("https://app.example", 200),
        ("http://app.example", 403),
        ("https://app.example.evil.example", 403),
        ("https://evil.example", 403),
        ("http://192.168.1.7", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_without_keys_a_page_from_elsewhere_starts_nothing(origin, status):
    host = "box.example:8000" if "box" in origin else "localhost:8000"
    assert await passed("POST", "127.0.0.1", host=host, origin=origin) == status
    assert await passed("DELETE", "127.0.0.1", host=host, origin=origin) == status
    assert await passed("GET", "127.0.0.1", host=host, origin=origin) == 200  # browsers keep the answer from the page
    assert await passed("OPTIONS", "127.0.0.1", host=host, origin=origin) == 200
    assert await passed("POST", "192.168.1.2", host=host, origin=origin) == 200


async def test_programs_that_name_no_origin_may_call():
    assert await passed("POST", "127.0.0.1", host="localhost:8000") == 200


async def passed(method: str, server: str, **headers: str) -> int:
    """The status for a request to a gateway without keys."""

    async def app(scope, receive, send):
        await Response()(scope, receive, send)

    async def send(message):
        sent.append(message)

    sent: list = []
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/v1/models", "headers": given, "server": (server, 8000)}
    await LocalGuard(app, ("box.example",), ("https://app.example",))(scope, None, send)
    return sent[0]["status"]


async def test_names_of_the_model_are_those_that_were_given():
    async with served(names=("gpt-4", "claude")) as gateway:
        listed = (await gateway.request("GET", "/v1/models")).json()["data"]
        one = (await gateway.request("GET", "/v1/models/claude")).json()
        answers = [(await gateway.chat(model=name)).json().get("model") for name in ("gpt-4", "claude", "", "toy")]
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
            anthropics = [card async for card in client.models.list()]
    assert [card["id"] for card in listed] == ["gpt-4", "claude"]
    assert (one["id"], one["max_model_len"]) == ("claude", 4096)
    assert answers == ["gpt-4", "claude", "gpt-4", None]
    assert [(card.display_name, card.type) for card in anthropics] == [("gpt-4", "model"), ("claude", "model")]
    assert all(isinstance(card.created_at, datetime) for card in anthropics)
    told = [card.model_dump() for card in anthropics]
    assert all((card["lifecycle"], card["max_input_tokens"]) == ("active", 4096) for card in told)


async def test_however_fast_health_is_asked_for_the_verifier_is_asked_twenty_times_a_second(monkeypatch):
    asked, plain, clock = [], AsyncClient.status, asyncio.get_running_loop().time

    async def status(client: AsyncClient) -> StatusReport:
        asked.append(client)
        return await plain(client)

    async with served() as gateway:
        monkeypatch.setattr(AsyncClient, "status", status)
        began = clock()
        for _ in range(3):
            answers = await asyncio.gather(*(gateway.request("GET", "/health") for _ in range(20)))
            assert {answer.status_code for answer in answers} == {200}
        assert 1 < len(asked) <= 2 + (clock() - began) / REPORT_S


async def test_health_is_as_good_as_the_verifiers():
    async with served(patience=0.2) as gateway:
        gateway.cluster.stops["verifier"].set()
        await gateway.cluster.tasks["verifier"]
        down = await gateway.request("GET", "/health")
        gateway.cluster.start_verifier()
        while (up := await gateway.request("GET", "/health")).status_code != 200:
            pass
        answer = await gateway.chat()
    assert down.status_code == 503
    assert down.json()["error"]["type"] == "service_unavailable"
    assert "retry-after" in down.headers
    assert up.json()["status"] == "ok"
    assert answer.status_code == 200


async def test_a_gateway_that_leaves_says_so():
    async with served() as gateway:
        gateway.gateway.draining = True
        statuses = [(await gateway.request("GET", "/health")).status_code, (await gateway.chat()).status_code]
        gateway.gateway.draining = False
    assert statuses == [503, 503]


async def test_a_stream_survives_a_restart_of_the_verifier():
    async with served(Cluster(language=LANGUAGE)) as gateway:
        ask = {"model": "toy", "messages": TURNS, "max_tokens": 300, "temperature": 0}
        extra = {"ignore_eos": True}
        text, restarted = "", False
        stream = await gateway.openai().chat.completions.create(**ask, stream=True, extra_body=extra)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if len(text) > 20 and not restarted:
                restarted = True
                gateway.cluster.stops["verifier"].set()
                await gateway.cluster.tasks["verifier"]
                gateway.cluster.start_verifier()
        again = await gateway.openai().chat.completions.create(**ask, extra_body=extra)
    assert text == again.choices[0].message.content
    assert len(text) == 300


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
        (":8000", None),
        ("8000", ("127.0.0.1", 8000)),
        ("http://x:80", None),
        ("x:99999", None),
        ("x:", None),
    ],
)
def test_an_http_address_is_host_and_port(address, expected):
    if expected is None:
        with pytest.raises(ConfigError, match="--http"):
            parse_http(address)
    else:
        assert parse_http(address) == expected


def test_an_address_in_use_is_one_sentence():
    with listen("127.0.0.1:0") as listener, pytest.raises(ConfigError, match="choose another with --http"):
        listen(f"127.0.0.1:{listener.getsockname()[1]}")
