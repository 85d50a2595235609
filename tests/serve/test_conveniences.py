"""What clients and probes expect of every server: request ids, versions, packed bodies, the list with a slash."""

import gzip
import json

import pytest

import duoactor
from tests.serve.gateway import TURNS, served
from tests.serve.script import scripted
from tests.world.models import INFO, ToyCodec

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


async def test_every_answer_has_a_request_id_and_the_clients_own_comes_back():
    async with served() as gateway:
        made = [await gateway.request("GET", path) for path in ("/health", "/v1/nothing", "/v1/models")]
        streamed = await gateway.chat(stream=True)
        own = await gateway.request("GET", "/health", headers={"x-request-id": "mine"})
        long = await gateway.request("GET", "/health", headers={"x-request-id": "x" * 500})
    ids = [answer.headers["x-request-id"] for answer in (*made, streamed, long)]
    assert len(set(ids)) == 5 and all(ident.startswith("req_") for ident in ids)
    assert (own.headers["x-request-id"], own.headers["request-id"]) == ("mine", "mine")


async def test_probes_and_the_list_of_models_answer_where_others_have_them():
    async with served(keys=("k",)) as gateway:
        ping = await gateway.request("GET", "/ping")
        version = await gateway.request("GET", "/version")
        models = await gateway.request("GET", "/v1/models/", headers={"authorization": "Bearer k"})
    assert (ping.status_code, version.json()) == (200, {"version": duoactor.__version__})
    assert models.json()["data"][0]["id"] == "toy"


async def test_a_packed_body_is_unpacked():
    body = gzip.compress(json.dumps({"messages": TURNS, "max_tokens": 3}).encode())
    async with served() as gateway:
        answer = await gateway.request("POST", CHAT, content=body, headers={**JSON, "content-encoding": "gzip"})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [(b"{}", "gzip", 400), (b"{}", "br", 415), (gzip.compress(b" " * 5000), "gzip", 413)],
    ids=["broken", "unknown", "too large"],
)
async def test_a_body_that_cannot_be_unpacked_is_refused(body, encoding, status, monkeypatch):
    monkeypatch.setattr("duoactor.serve.bodies.MAX_BODY", 4000)
    async with served() as gateway:
        answer = await gateway.request("POST", CHAT, content=body, headers={**JSON, "content-encoding": encoding})
    assert answer.status_code == status, answer.text


async def test_what_is_not_served_says_what_to_use_instead():
    async with served() as gateway:
        answer = await gateway.request("GET", "/v1/embeddings")
    assert (answer.status_code, "embedding model" in answer.json()["error"]["message"]) == (404, True)


async def test_the_tokenizers_configuration_is_told_as_vllm_tells_it():
    async with served() as gateway:
        found = (await gateway.request("GET", "/tokenizer_info")).json()
    assert found == {**ToyCodec().config(), "model_max_length": INFO.max_context}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.3, "n_predict": 9}, {"repetition_penalty": 1.3, "max_tokens": 9}),
        ({"options": {"num_predict": 7, "temperature": 0.5}}, {"max_tokens": 7, "temperature": 0.5}),
        ({"mirostat": 0, "mirostat_tau": 5, "dry_multiplier": 0, "xtc_probability": 0, "dynatemp_range": 0}, {}),
    ],
)
async def test_other_servers_names_of_a_parameter_mean_the_same(theirs: dict, ours: dict):
    fixed = {"model": "toy", "messages": TURNS, "seed": 5}
    limit = {} if {"n_predict", "options"} & theirs.keys() else {"max_tokens": 8}
    async with served(scripted("A text that ends.")) as gateway:
        one = await gateway.post(CHAT, **fixed, **limit, **theirs)
        two = await gateway.post(CHAT, **fixed, **{**limit, **ours})
    assert one.json()["choices"] == two.json()["choices"], one.text
    assert "x-duoactor-warning" not in one.headers


@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])
async def test_a_base_url_without_v1_works(path: str):
    asked = {"messages": TURNS} if path == "/chat/completions" else {"input": "Hello"}
    async with served() as gateway:
        made = [await gateway.post(f"{base}{path}", model="toy", temperature=0, **asked) for base in ("", "/v1")]
        models = [(await gateway.request("GET", f"{base}/models")).json()["data"][0]["id"] for base in ("", "/v1")]
    assert [one.json()["object"] for one in made] == [made[0].json()["object"]] * 2
    assert models == ["toy", "toy"]
