"""Anthropic's /v1/messages: bodies, events and errors in its shape."""

import json

import anthropic
import pytest

from protocols.messages import Sampling
from tests.serve.gateway import LANGUAGE, TURNS, served
from tests.serve.script import scripted
from tests.world.models import ToyCodec

CODEC = ToyCodec()
F = {"name": "f", "input_schema": {}}
ASK = {"model": "toy", "messages": TURNS, "max_tokens": 20, "temperature": 0}


USAGE = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}


def truth(prompt: str, **sampling) -> str:
    return CODEC.decode(LANGUAGE.continuation(CODEC.encode(prompt), Sampling(**sampling)))


async def test_a_message_is_answered():
    async with served() as gateway:
        answer = (await gateway.post("/v1/messages", **ASK)).json()
    assert answer["content"] == [{"text": truth("Hello", max_tokens=20), "type": "text"}]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "toy")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("max_tokens", None)
    assert answer["usage"] == USAGE | {"input_tokens": 5, "output_tokens": 20}


async def test_the_system_stands_before_the_turns_and_parts_are_joined():
    system = [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}]
    turns = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    async with served() as gateway:
        answer = (await gateway.post("/v1/messages", **{**ASK, "system": system, "messages": turns})).json()
        count = (await gateway.post("/v1/messages/count_tokens", model="toy", system="Be", messages=turns)).json()
    assert answer["content"][0]["text"] == truth("BeHi", max_tokens=20)
    assert count == {"input_tokens": 4}


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses/input_tokens", {"input": "Hi"}),
    ],
)
@pytest.mark.parametrize("idle", [{"method": "best"}, {"priority": "x"}, {"speculative": False, "method": "tree"}])
async def test_parameters_of_time_alone_are_not_looked_at_where_tokens_are_counted(path, question, idle):
    async with served() as gateway:
        plain = await gateway.post(path, model="toy", **question)
        count = await gateway.post(path, model="toy", **question, **idle)
    assert count.status_code == 200, count.text
    assert count.json() == plain.json()


@pytest.mark.parametrize("body", ["", "[1]", '{"model": "toy",', '{"method": "x", "model": 1e999}', "\ud800"])
async def test_a_body_to_count_that_is_no_json_object_is_refused_as_elsewhere(body):
    async with served() as gateway:
        sent = body.encode("utf-8", "surrogatepass")
        said = [
            await gateway.request("POST", path, content=sent, headers={"content-type": "application/json"})
            for path in ("/v1/messages/count_tokens", "/v1/messages")
        ]
    assert [one.status_code for one in said] == [400, 400]
    assert said[0].json() == said[1].json()


async def test_a_stop_sequence_is_named():
    text = truth("Hello", max_tokens=20)
    async with served() as gateway:
        answer = (await gateway.post("/v1/messages", **ASK, stop_sequences=["~~~", text[6:8]])).json()
    assert answer["content"][0]["text"] == text[: text.index(text[6:8])]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", text[6:8])


async def test_its_events_come_in_order_and_carry_their_names():
    async with served() as gateway:
        answer = await gateway.post("/v1/messages", **ASK, stream=True)
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in blocks]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert names == [event["type"] for event in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0]["message"]["usage"] == USAGE | {"input_tokens": 5, "output_tokens": 0}
    text = "".join(event["delta"]["text"] for event in events[2:-3])
    assert text == truth("Hello", max_tokens=20)
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 20
    assert events[-2]["metrics"]["speculative_decoding"]["num_spec_steps"] > 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "web_search", "type": "web_search_20250305"}]}, "tools[0].type"),
        ({"tools": [F], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"formats": {}}}, "output_config"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
        ({"temperature": -1}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"seed": 3}, "seed"),
    ],
)
async def test_refusals_have_anthropics_shape_and_name_what_is_refused(changes, named):
    async with served() as gateway:
        answer = await gateway.post("/v1/messages", **{**ASK, **changes})
    assert answer.status_code == 400
    error = answer.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert named in error["error"]["message"]


async def test_a_key_is_taken_as_anthropic_sends_it():
    async with served(keys=("k",)) as gateway:
        with_key = await gateway.request("POST", "/v1/messages", ASK, headers={"x-api-key": "k"})
        without = await gateway.request("POST", "/v1/messages", ASK)
    assert with_key.status_code == 200
    assert without.json()["error"]["type"] == "authentication_error"


async def test_the_sdks_tool_runner_calls_functions_and_sends_their_results():
    called = []

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: its name
        """
        called.append(city)
        return "sunny"

    cluster = scripted('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>')
    async with served(cluster) as gateway:
        client = anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0)
        runner = client.beta.messages.tool_runner(
            model="toy", max_tokens=50, messages=TURNS, tools=[get_weather], max_iterations=2
        )
        stops = [message.stop_reason async for message in runner]
    assert (stops, called[0]) == (["tool_use", "tool_use"], "Paris")
    (_, _, result), _ = cluster.codec.asked[-1]
    assert (result.role, result.content) == ("tool", "sunny")
