"""A target with a reasoning chat template: every API by its stock client, whole and streamed, with an answer of a given
form and with a required call behind the thought."""

import json
import shutil

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from actors.engines.build import EngineOptions, build_target
from duoactor.config import resolve_model
from tests.serve.gateway import served
from tests.world.cluster import Cluster

TURNS = [{"role": "user", "content": "Where is it warm today?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Lagos"]}},
    "required": ["city"],
    "additionalProperties": False,
}
BUDGET = 12  # tokens of a thought, which the model does not close by itself
OPENING = "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Target and codec."""
    target = tmp_path_factory.mktemp("reasoning") / "target"
    shutil.copytree(resolve_model("bundled", "target"), target)
    template = target / "chat_template.jinja"
    template.write_text(template.read_text().strip().removesuffix("{% endif %}") + OPENING)
    return build_target(str(target), EngineOptions(kv_tokens=8192))


@pytest.fixture
async def url(model):
    target, codec = model
    async with served(Cluster(target=target, codec=codec)) as gateway:
        yield gateway.url


async def chat(url, form: str, stream: bool) -> tuple[str, str, str]:
    """(thought, text, arguments of the call)"""
    asked = {"model": "target", "messages": TURNS, "max_tokens": 99, "extra_body": {"max_thinking_tokens": BUDGET}}
    if form == "schema":
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    else:
        asked["tools"] = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
        asked |= {"tool_choice": "required", "parallel_tool_calls": False}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                thoughts = [
                    event.chunk.choices[0].delta.model_extra.get("reasoning_content", "")
                    async for event in events
                    if event.type == "chunk"
                ]
                message = (await events.get_final_completion()).choices[0].message
            assert len(thoughts) > 2
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
            thoughts = [message.model_extra["reasoning_content"]]
    calls = message.tool_calls or []
    return "".join(thoughts), message.content or "", "".join(one.function.arguments for one in calls)


async def responses(url, form: str, stream: bool) -> tuple[str, str, str]:
    asked = {"model": "target", "input": TURNS, "extra_body": {"reasoning": {"max_tokens": BUDGET}}}
    if form == "schema":
        asked["text"] = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    else:
        asked["tools"] = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}]
        asked |= {"tool_choice": "required", "parallel_tool_calls": False}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            events = [event async for event in await client.responses.create(stream=True, **asked)]
            pieces = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
            answer = events[-1].response
            assert "".join(pieces) == answer.output[0].content[0].text and len(pieces) > 2
        else:
            answer = await client.responses.create(**asked)
    found = {item.type: item for item in answer.output}
    assert [item.type for item in answer.output] == ["reasoning", "message" if form == "schema" else "function_call"]
    arguments = found["function_call"].arguments if "function_call" in found else ""
    return found["reasoning"].content[0].text, answer.output_text, arguments


async def messages(url, form: str, stream: bool) -> tuple[str, str, str]:
    thinking = {"type": "enabled", "budget_tokens": BUDGET}
    asked = {"model": "target", "messages": TURNS, "max_tokens": 99, "thinking": thinking}
    if form == "schema":
        asked["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    else:
        asked["tools"] = [{"name": "look", "input_schema": SCHEMA}]
        asked["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    async with AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        if stream:
            async with client.messages.stream(**asked) as events:
                pieces = [event.thinking async for event in events if event.type == "thinking"]
                answer = await events.get_final_message()
            assert "".join(pieces) == answer.content[0].thinking and len(pieces) > 2
        else:
            answer = await client.messages.create(**asked)
    thought, last = answer.content
    if form == "schema":
        return thought.thinking, last.text, ""
    return thought.thinking, "", json.dumps(last.input)


@pytest.mark.parametrize("api", [chat, responses, messages])
async def test_a_form_and_a_required_call_stand_behind_the_thought_whole_and_streamed(url, api):
    for stream in (False, True):
        for form in ("schema", "call"):
            thought, text, arguments = await api(url, form, stream)
            assert thought and "think>" not in thought + text
            assert json.loads(text if form == "schema" else arguments)["city"] in ("Paris", "Lagos")
            assert (text if form == "call" else arguments) == ""


async def test_a_request_that_turns_thinking_off_has_no_thought(url):
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        answer = await client.chat.completions.create(model="target", messages=TURNS, max_tokens=9, extra_body=off)
    assert "reasoning_content" not in answer.choices[0].message.model_extra
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
