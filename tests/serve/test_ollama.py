"""Ollama's API: the client's own calls, the shapes of its lines, and what becomes of its options."""

import json
from dataclasses import replace

import pytest

from duoactor.serve.ollama.models import SPOKEN
from protocols.messages import Sampling, Thinking
from tests.serve.gateway import TURNS, served
from tests.serve.script import scripted
from tests.world.cluster import Cluster
from tests.world.models import INFO, ToyLanguage, ToyTarget

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'


def lines(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_chat_streams_lines_of_json_unless_told_not_to():
    asked = {"model": "toy:latest", "messages": TURNS, "options": {"num_predict": 8, "temperature": 0}}
    async with served() as gateway:
        streamed = lines(await gateway.post("/api/chat", **asked))
        whole = (await gateway.post("/api/chat", stream=False, **asked)).json()
        same = (await gateway.chat(temperature=0)).json()
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    assert "".join(line["message"]["content"] for line in streamed) == whole["message"]["content"]
    assert whole["message"] == {"role": "assistant", "content": same["choices"][0]["message"]["content"]}
    last = streamed[-1]
    assert (last["model"], last["done_reason"], last["eval_count"]) == ("toy:latest", "length", 8)
    assert last["prompt_eval_count"] == same["usage"]["prompt_tokens"]
    assert last["total_duration"] == last["prompt_eval_duration"] + last["eval_duration"] > 0
    assert all(isinstance(last[name], int) for name in last if name.endswith("duration"))


async def test_a_prompt_is_a_users_turn_and_raw_is_taken_as_it_is():
    options = {"num_predict": 6, "temperature": 0}
    async with served() as gateway:
        made = (await gateway.post("/api/generate", model="toy", prompt="Hi", stream=False, options=options)).json()
        chat = await gateway.chat(messages=[{"role": "user", "content": "Hi"}], max_tokens=6, temperature=0)
        raw = lines(await gateway.post("/api/generate", model="toy", prompt="Hi", raw=True, options=options))
        text = (await gateway.post("/v1/completions", prompt="Hi", max_tokens=6, temperature=0)).json()
    assert made["response"] == chat.json()["choices"][0]["message"]["content"]
    assert "".join(line["response"] for line in raw) == text["choices"][0]["text"]


async def test_options_have_the_meaning_of_the_parameters_they_stand_for():
    ours = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7, "stop": ["zz"]}
    theirs = {**ours, "repeat_penalty": 1.2, "num_predict": 12, "num_gpu": 99, "num_thread": 4, "typical_p": 1.0}
    async with served() as gateway:
        made = await gateway.post("/api/chat", model="toy", messages=TURNS, stream=False, options=theirs)
        asked = gateway.cluster.verifier.state.counters
        same = await gateway.chat(**ours, repetition_penalty=1.2, max_tokens=12)
    assert made.json()["message"]["content"] == same.json()["choices"][0]["message"]["content"]
    assert "x-duoactor-warning" not in made.headers and asked["bad_requests"] == 0


async def test_sampling_that_nobody_names_is_ollamas_unless_the_model_has_its_own():
    asked = {"model": "toy", "messages": TURNS, "stream": False, "options": {"num_predict": 12, "seed": 7}}
    own = Cluster(target=ToyTarget(ToyLanguage(), info=replace(INFO, sampling=Sampling(temperature=0.5))))
    async with served() as gateway:
        usual = (await gateway.post("/api/chat", **asked)).json()["message"]["content"]
        same = await gateway.chat(temperature=0.8, top_k=40, top_p=0.9, seed=7, max_tokens=12)
        told = (await gateway.post("/api/show", model="toy")).json()["parameters"].split()
    async with served(own) as gateway:
        models = (await gateway.post("/api/chat", **asked)).json()["message"]["content"]
        half = await gateway.chat(temperature=0.5, seed=7, max_tokens=12)
        shown = (await gateway.post("/api/show", model="toy")).json()["parameters"].split()
    assert usual == same.json()["choices"][0]["message"]["content"]
    assert models == half.json()["choices"][0]["message"]["content"]
    assert told == ["temperature", "0.8", "top_k", "40", "top_p", "0.9"] and shown == ["temperature", "0.5"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"num_ctx": 1 << 20}, "num_ctx 1048576"), ({"repeat_last_n": 64}, "repeat_last_n"), ({"num_cxt": 4}, "num_cxt")],
)
async def test_options_without_effect_are_named_in_a_header(options: dict, said: str):
    async with served() as gateway:
        made = await gateway.post("/api/chat", model="toy", messages=TURNS, options={"num_predict": 2, **options})
    assert made.status_code == 200 and said in made.headers["x-duoactor-warning"]


@pytest.mark.parametrize(
    ("path", "given", "said"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "images"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "x", "context": [1, 2]}, "context"),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, "system"),
        ("/api/chat", {"messages": TURNS, "options": {"mirostat": 2}}, "mirostat"),
        ("/api/chat", {"messages": TURNS, "options": {"temprature": 2}}, "temprature"),
        ("/api/chat", {"messages": TURNS, "format": "xml"}, "format"),
    ],
)
async def test_what_cannot_be_done_is_refused_in_ollamas_shape(path: str, given: dict, said: str):
    async with served() as gateway:
        refused = await gateway.post(path, model="toy", **given)
        other = await gateway.post(path, model="other", **{"prompt": "x"} if "prompt" in given else {"messages": TURNS})
    assert refused.status_code == 400 and said in refused.json()["error"]
    assert other.status_code == 404 and "`other` does not exist" in other.json()["error"]


async def test_a_request_without_a_prompt_only_loads_the_model():
    async with served() as gateway:
        chat = (await gateway.post("/api/chat", model="toy", messages=[])).json()
        text = (await gateway.post("/api/generate", model="toy", keep_alive="5m")).json()
    assert (chat["message"]["content"], chat["done"], chat["done_reason"]) == ("", True, "load")
    assert (text["response"], text["done"], text["done_reason"]) == ("", True, "load")


async def test_calls_are_whole_objects_and_results_without_an_id_belong_to_them_in_order():
    call = {"id": "c1", "function": {"index": 0, "name": "weather", "arguments": {"city": "Ulm"}}}
    history = [
        *TURNS,
        {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [call, call]},
        {"role": "tool", "tool_name": "weather", "content": "sun"},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
    ]
    async with served(scripted(f"Look: {CALL}")) as gateway:
        made = lines(await gateway.post("/api/chat", model="toy", messages=history, tools=[WEATHER]))
        turns = gateway.cluster.codec.asked[-1][0]
    calls = [one for line in made for one in line["message"].get("tool_calls", [])]
    assert [one["function"] for one in calls] == [{"index": 0, "name": "weather", "arguments": {"city": "Ulm"}}]
    assert made[-1]["done_reason"] == "stop"
    assert [turn.tool_call_id for turn in turns[2:]] == [one.id for one in turns[1].tool_calls]
    assert turns[1].reasoning == "so" and turns[1].tool_calls[0].arguments == '{"city": "Ulm"}'


async def test_a_call_that_the_limit_cuts_off_is_left_out():
    async with served(scripted(CALL)) as gateway:
        options = {"num_predict": 9}
        made = await gateway.post(
            "/api/chat", model="toy", messages=TURNS, tools=[WEATHER], stream=False, options=options
        )
    assert "tool_calls" not in made.json()["message"] and made.json()["done_reason"] == "length"


async def test_thoughts_stand_apart():
    thinking = Thinking(begin="<think>", end="</think>")
    async with served(scripted("<think>so</think>Yes", thinking=thinking)) as gateway:
        made = lines(await gateway.post("/api/chat", model="toy", messages=TURNS, think=True))
        shown = (await gateway.post("/api/show", model="toy")).json()
    assert "".join(line["message"].get("thinking", "") for line in made) == "so"
    assert "".join(line["message"]["content"] for line in made) == "Yes"
    assert "thinking" in shown["capabilities"]


async def test_the_model_is_listed_shown_and_running_under_a_tagged_name():
    async with served() as gateway:
        tags = (await gateway.request("GET", "/api/tags")).json()["models"]
        running = (await gateway.request("GET", "/api/ps")).json()["models"]
        shown = (await gateway.post("/api/show", model=tags[0]["model"])).json()
        version = (await gateway.request("GET", "/api/version")).json()
        head = await gateway.request("HEAD", "/")
    assert tags[0]["name"] == tags[0]["model"] == running[0]["name"] == "toy:latest"
    assert len(tags[0]["digest"]) == 64 and running[0]["context_length"] == INFO.max_context
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == INFO.max_context
    assert shown["capabilities"] == ["completion", "tools"]
    assert version == {"version": SPOKEN} and head.status_code == 200


async def test_a_body_needs_no_content_type_unless_a_page_sends_it():
    body = json.dumps({"model": "toy", "messages": TURNS, "options": {"num_predict": 2}})
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with served() as gateway:
        plain = await gateway.request("POST", "/api/chat", content=body)
        curl = await gateway.request("POST", "/api/chat", content=body, headers=form)
        page = await gateway.request("POST", "/api/chat", content=body, headers={**form, "origin": "http://evil.test"})
    assert [one.status_code for one in (plain, curl, page)] == [200, 200, 415]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/embed", "embedding model"),
        ("/v1/rerank", "reranking model"),
        ("/api/pull", "duoactor up MODEL"),
        ("/v1/v1/chat/completions", "before /v1"),
    ],
)
async def test_what_is_not_served_says_what_to_do(path: str, said: str):
    async with served() as gateway:
        refused = await gateway.post(path, model="toy")
    assert refused.status_code == 404 and said in refused.text


async def test_ollamas_own_client_chats_generates_lists_and_shows():
    ollama = pytest.importorskip("ollama", reason="the package ollama is not installed: pip install 'duoactor[dev]'")
    async with served() as gateway:
        client, few = ollama.AsyncClient(gateway.url), {"num_predict": 5, "temperature": 0}
        whole = await client.chat("toy", TURNS, options=few)
        parts = [part async for part in await client.chat("toy", TURNS, stream=True, options=few)]
        text = await client.generate("toy", "Hi", options=few)
        listed, running, shown = await client.list(), await client.ps(), await client.show("toy")
        with pytest.raises(ollama.ResponseError) as refused:
            await client.embed("toy", "x")
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert whole.eval_count == 5 and whole.done_reason == "length" and text.response
    assert listed.models[0].model == running.models[0].model == "toy:latest"
    assert shown.modelinfo["duoactor.context_length"] == INFO.max_context
    assert refused.value.status_code == 404 and "embedding model" in refused.value.error
