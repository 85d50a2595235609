"""/v1/responses with the stock openai client: stateless text."""

import openai
import pytest

from protocols.messages import Sampling
from tests.serve.gateway import LANGUAGE, served
from tests.world.cluster import Cluster
from tests.world.fakes import ToyCodec, ToyLanguage

CODEC = ToyCodec()
F = {"type": "function", "name": "f", "parameters": {}}


def truth(prompt: str, **sampling) -> str:
    return CODEC.decode(LANGUAGE.continuation(CODEC.encode(prompt), Sampling(**sampling)))


async def test_a_text_is_answered():
    async with served() as gateway:
        answer = await gateway.openai().responses.create(
            model="toy", input="Hello", max_output_tokens=20, temperature=0, store=False
        )
    assert answer.output_text == truth("Hello", max_tokens=20)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (5, 20, 25)
    assert answer.model_extra["metrics"]["tokens_per_second"] > 0


async def test_a_conversation_with_instructions_is_answered():
    turns = [
        {"role": "user", "content": "Hel"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "lo"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Bye"}]},
    ]
    async with served() as gateway:
        answer = await gateway.openai().responses.create(
            model="toy", instructions="Be", input=turns, max_output_tokens=9, temperature=0
        )
    assert answer.output_text == truth("BeHelloBye", max_tokens=9)


async def test_its_events_are_those_that_the_openai_client_assembles():
    async with served() as gateway:
        stream = await gateway.openai().responses.create(
            model="toy", input="Hello", max_output_tokens=20, temperature=0, stream=True
        )
        events = [event async for event in stream]
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == truth("Hello", max_tokens=20)
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1


async def test_an_answer_to_its_own_end_is_complete():
    async with served(Cluster(language=ToyLanguage(eos_rate=0.1))) as gateway:
        answer = await gateway.openai().responses.create(model="toy", input="Hello", temperature=0)
    assert (answer.status, answer.incomplete_details) == ("completed", None)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "1"}]}, "input[0].arguments"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
async def test_what_needs_a_memory_or_cannot_be_is_refused_by_name(changes, param):
    async with served() as gateway:
        with pytest.raises(openai.BadRequestError) as caught:
            await gateway.openai().responses.create(**{"model": "toy", "input": "Hello", **changes})
    assert caught.value.param.startswith(param)
