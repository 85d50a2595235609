"""Calls of other programs' pages, as their sources write them: Open WebUI 0.12.4, and the page of llama-server."""

import json
from datetime import datetime

import httpx2
import pytest

from tests.serve.gateway import TURNS, served
from tests.serve.test_ollama import lines

TAGGED = "toy:latest"
# what llama-server's page sends where every setting is filled in
PAGE = json.loads("""{
    "return_progress": true, "reasoning_format": "auto", "timings_per_token": true, "temperature": 0.8,
    "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "xtc_probability": 0,
    "xtc_threshold": 0.1, "typ_p": 1, "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0,
    "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
    "samplers": ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"], "max_tokens": 8,
    "backend_sampling": false, "parse_tool_calls": true, "thinking_budget_tokens": -1, "reasoning_control": true,
    "chat_template_kwargs": {"enable_thinking": false}
}""")
# Open WebUI's options of Ollama, all of them
OPTIONS = json.loads("""{
    "num_predict": 8, "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5.0, "num_ctx": 2048, "num_batch": 512,
    "num_keep": 24, "repeat_last_n": 64, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "repeat_penalty": 1.1, "seed": 0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": ["zz"], "num_gpu": 1, "use_mmap": true,
    "use_mlock": false, "num_thread": 2, "temperature": 0.8
}""")


async def test_llama_servers_page_gets_its_answer_with_the_times_that_it_shows():
    async with served() as gateway:
        events = await gateway.events("/v1/chat/completions", messages=TURNS, **PAGE)
        whole = (await gateway.chat(timings_per_token=True)).json()
        plain = await gateway.events("/v1/chat/completions", messages=TURNS, max_tokens=8)
        read = await gateway.post("/v1/chat/completions", messages=TURNS, stream=False, n_predict=0)
        described = [await gateway.request("GET", path) for path in ("/props", "/v1/models", "/slots", "/health")]
    assert not any("timings" in event for event in plain)
    timed = [event["timings"] for event in events if event["choices"][0]["delta"].get("content")]
    counts = [one["predicted_n"] for one in timed]
    assert counts == sorted(counts) and events[-1]["timings"]["predicted_n"] == whole["timings"]["predicted_n"] == 8
    assert all(one["prompt_n"] + one["cache_n"] == 5 and one["predicted_ms"] >= 0 for one in timed)
    assert [one.status_code for one in (read, *described)] == [200] * 5


@pytest.mark.parametrize("given", [{"reasoning_format": "none"}, {"typ_p": 0.5}, {"parse_tool_calls": False}])
async def test_settings_of_llama_servers_page_that_would_change_the_answer_are_refused(given: dict):
    async with served() as gateway:
        refused = await gateway.chat(**given)
    assert refused.status_code == 400 and refused.json()["error"]["param"] in given


async def test_open_webui_finds_the_model_on_its_ollama_setting_and_unloads_it_in_vain():
    async with served() as gateway:
        tags, loaded, version = [
            (await gateway.request("GET", f"/api/{path}")).json() for path in ("tags", "ps", "version")
        ]
        unload = await gateway.post("/api/generate", model=TAGGED, keep_alive=0, prompt="")
        card = await gateway.post("/api/show", model=TAGGED)
        older, nameless = await gateway.post("/api/show", name=TAGGED), await gateway.post("/api/show")
        pulled = await gateway.post("/api/pull", model=TAGGED)
    assert [one["model"] for one in tags["models"]] == [one["model"] for one in loaded["models"]] == [TAGGED]
    assert int(datetime.fromisoformat(loaded["models"][0]["expires_at"].replace("Z", "+00:00")).timestamp()) > 0
    assert tuple(map(int, version["version"].split(".")))
    assert unload.json()["done"] and card.status_code == older.status_code == 200
    assert nameless.json()["error"] == "model is missing"
    assert pulled.status_code >= 400 and "duoactor up MODEL" in pulled.json()["error"]


async def test_open_webui_chats_on_its_ollama_setting_and_asks_for_a_title():
    title = [{"role": "user", "content": "### Task: write a title"}]
    async with served() as gateway:
        asked = {"model": TAGGED, "messages": TURNS, "options": OPTIONS, "keep_alive": "5m", "think": False}
        streamed = lines(await gateway.post("/api/chat", stream=True, **asked))
        made = (await gateway.post("/api/chat", model=TAGGED, stream=False, messages=title)).json()
    last = streamed[-1]
    assert last["done"] and last["eval_duration"] > 0 and last["prompt_eval_count"] == 5 and last["eval_count"] <= 8
    assert made["message"]["content"] and made["done_reason"] in ("stop", "length")


async def test_open_webui_chats_on_its_openai_setting_continues_and_stops():
    asked = {"model": "toy", "stream_options": {"include_usage": True}, "max_tokens": 8, "seed": 1}
    begun = [*TURNS, {"role": "assistant", "content": "Hel"}]
    async with served() as gateway:
        models = (await gateway.request("GET", "/v1/models")).json()["data"]
        events = await gateway.events("/v1/chat/completions", messages=TURNS, **asked)
        further = await gateway.post(
            "/v1/chat/completions",
            messages=begun,
            stream=True,
            continue_final_message=True,
            add_generation_prompt=False,
            **asked,
        )
        long = {**asked, "stream": True, "messages": TURNS, "max_tokens": 4000}
        async with (
            httpx2.AsyncClient(base_url=gateway.url, timeout=120) as http,
            http.stream("POST", "/v1/chat/completions", json=long) as answer,
        ):
            await anext(answer.aiter_lines())
        await gateway.idle()
    assert [one["id"] for one in models] == ["toy"] and further.status_code == 200
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 8
