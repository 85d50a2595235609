"""Requests as agents sent them (Claude Code 2.1.197, Codex CLI 0.171), with their texts and personal details replaced:
none of them may be refused for a field, and what differs from session to session must not cost the prefix cache."""

import copy
import json
from pathlib import Path

import pytest

from protocols.messages import ChatTurn, Thinking
from tests.serve.gateway import served
from tests.serve.script import scripted

RECORDED = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((Path(__file__).parent / "recorded").glob("*.json"))
}
THINKING = Thinking("<think>", "</think>")


@pytest.mark.parametrize("agent", RECORDED)
@pytest.mark.parametrize("thinking", [Thinking(), THINKING])
async def test_an_agents_first_request_is_answered(agent, thinking):
    recorded = RECORDED[agent]
    async with served(scripted("Hello.", thinking=thinking), names=("smollm2",)) as gateway:
        answer = await gateway.post(recorded["path"], **recorded["body"])
    assert answer.status_code == 200, answer.text
    assert "Hello" in answer.text
    last = answer.text.strip().split("\n\n")[-1]
    assert "message_stop" in last or "response.completed" in last


async def test_claude_codes_count_for_its_provider_is_no_part_of_the_prompt():
    first = RECORDED["claude_code"]["body"]
    second = copy.deepcopy(first)
    second["system"][0]["text"] = first["system"][0]["text"].replace("cc_entrypoint", "cch=abcde; cc_entrypoint")
    whole = {**first, "system": "\n".join(part["text"] for part in first["system"])}
    assert first["system"] != second["system"]
    async with served(scripted("Hello."), names=("smollm2",)) as gateway:
        for body in (first, second, whole):
            await gateway.post("/v1/messages", **body)
        asked = [turns for turns, _ in gateway.cluster.codec.asked]
    assert asked[0] == asked[1] == asked[2]
    assert asked[0][0].role == "system" and "billing" not in asked[0][0].content


async def test_a_thread_is_refused_in_the_words_that_let_the_client_go_on():
    body = {**RECORDED["claude_code"]["body"], "thread": {"type": "new"}}
    async with served(scripted("Hello.")) as gateway:
        answer = await gateway.post("/v1/messages", **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


async def test_a_conversation_that_is_too_long_is_told_in_the_words_that_agents_know():
    async with served() as gateway:
        answer = await gateway.post(
            "/v1/messages", model="toy", max_tokens=32000, messages=[{"role": "user", "content": "x" * 5000}]
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["message"] == (
        "prompt is too long: 5000 tokens > 4095 maximum (this model's maximum context length is 4096 tokens)"
    )


async def test_functions_may_be_limited_to_some_in_the_chat_and_the_responses_api():
    def tool(name):
        return {"name": name, "parameters": {"type": "object", "properties": {}}}

    def picked(name):
        return {"type": "function", "function": {"name": name}}

    chat = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": tool(name)} for name in "fgh"],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [picked("f"), picked("h")]},
        },
    }
    flat = {
        "input": "x",
        "tools": [{"type": "function", **tool(name)} for name in "fgh"],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
    }
    async with served(scripted("Hello.")) as gateway:
        for path, body in (("/v1/chat/completions", chat), ("/v1/responses", flat)):
            answer = await gateway.post(path, **body)
            assert answer.status_code == 200, answer.text
        shown = [json.loads(tools) for _, tools in gateway.cluster.codec.asked]
    assert [[one["function"]["name"] for one in tools] for tools in shown] == [["f", "h"], ["g"]]


async def test_usage_comes_with_every_event_where_that_is_asked_for():
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with served() as gateway:
        events = await gateway.events(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=8,
            stream_options=options,
            ignore_eos=True,
        )
    usages = [event["usage"] for event in events]
    made = [usage["completion_tokens"] for usage in usages]
    assert made == sorted(made) and made[-1] == 8 and made[0] <= 1
    assert {usage["prompt_tokens"] for usage in usages} == {5}


async def test_a_function_without_parameters_takes_none():
    required = {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}
    async with served(scripted("Hello.")) as gateway:
        streams = []
        asked = gateway.gateway.client.stream
        gateway.gateway.client.stream = lambda *args, **how: streams.append(how) or asked(*args, **how)
        await gateway.chat(**required)
    assert '"additionalProperties": false' in streams[0]["structured_outputs"].grammar
    assert ChatTurn("user", "Hello") in gateway.cluster.codec.asked[0][0]


async def test_guidellm_names_its_limit_twice_in_text_completions():
    asked = {"prompt": "ab", "max_tokens": 3, "max_completion_tokens": 3, "stop": None, "ignore_eos": True}
    async with served() as gateway:
        events = await gateway.events("/v1/completions", **asked, stream_options={"include_usage": True})
    assert events[-1]["usage"]["completion_tokens"] == 3
