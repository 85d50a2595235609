"""/v1/responses with the stock openai client."""

import tracemalloc
from dataclasses import replace

import msgspec
import openai
import pytest

from duoactor.serve.errors import ApiError
from duoactor.serve.openai.items import InputItem, turns
from duoactor.serve.openai.kept import Conversation, Kept, held
from protocols.limits import MAX_CALLS
from protocols.messages import ChatTurn, Sampling, ToolCall
from tests.serve.gateway import LANGUAGE, served
from tests.world.cluster import Cluster
from tests.world.models import INFO, ToyCodec, ToyLanguage, ToyTarget

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
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "1" * 257, "name": "f"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "1" * 257, "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}] * 1025}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
async def test_what_needs_a_memory_or_cannot_be_is_refused_by_name(changes, param):
    async with served() as gateway:
        with pytest.raises(openai.BadRequestError) as caught:
            await gateway.openai().responses.create(**{"model": "toy", "input": "Hello", **changes})
    assert caught.value.param.startswith(param) and "enum" not in caught.value.message


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_tells_the_metadata_of_its_request(stream):
    ask = {"model": "toy", "input": "Hello", "max_output_tokens": 3, "metadata": {"run": "7"}}
    async with served() as gateway:
        client = gateway.openai()
        made = await client.responses.create(**ask, include=["reasoning.encrypted_content"], stream=stream)
        told = [event.response async for event in made if hasattr(event, "response")] if stream else [made]
        told.append(await client.responses.retrieve(told[-1].id))
    assert len(told) == (4 if stream else 2) and all(one.metadata == {"run": "7"} for one in told)


async def test_parts_that_no_answer_has_are_counted_as_ignored():
    async with served() as gateway:
        create = gateway.openai().responses.create
        for include in (["reasoning.encrypted_content", "file_search_call.results"], [], None):
            await create(model="toy", input="Hello", max_output_tokens=3, include=include)
        metrics = (await gateway.request("GET", "/metrics")).text
    assert 'duoactor:ignored_parameters_total{parameter="include"} 1.0' in metrics


async def test_a_response_goes_on_with_an_earlier_one():
    async with served() as gateway:
        create = gateway.openai().responses.create
        ask = {"model": "toy", "max_output_tokens": 9, "temperature": 0}
        first = await create(instructions="Be", input="Hello", **ask)
        second = await create(input="Bye", previous_response_id=first.id, **ask)
        stream = await create(input="Now", previous_response_id=second.id, stream=True, **ask)
        third = [event async for event in stream][-1].response
        fourth = await create(input="End", previous_response_id=third.id, **ask)
    said = truth("BeHello", max_tokens=9)
    again = f"Hello{said}Bye{truth(f'Hello{said}Bye', max_tokens=9)}Now"
    assert (first.output_text, third.output_text) == (said, truth(again, max_tokens=9))
    assert fourth.previous_response_id == third.id
    assert fourth.output_text == truth(f"{again}{third.output_text}End", max_tokens=9)


async def test_a_response_is_retrieved_deleted_and_its_input_counted():
    async with served(keys=("one", "two")) as gateway:
        mine, other = gateway.openai("one"), gateway.openai("two")
        made = await mine.responses.create(model="toy", input="Hello", max_output_tokens=6, temperature=0)
        streamed = await mine.responses.create(model="toy", input="Hello", max_output_tokens=6, stream=True)
        last = [one async for one in streamed][-1].response
        found = [await mine.responses.retrieve(one.id) for one in (made, last)]
        counted = await mine.responses.input_tokens.count(model="toy", input="Hello", previous_response_id=made.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.delete(made.id)
        await mine.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await mine.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await mine.responses.delete(made.id)
    assert [one.output_text for one in found] == [made.output_text, last.output_text]
    assert found[0].usage == made.usage and found[0].status == "incomplete"
    assert counted.input_tokens == 5 + len(made.output_text) + 5


async def test_the_items_that_a_response_answers_are_listed_in_pages_and_can_be_sent_again():
    calls = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
    ]
    ask = {"model": "toy", "max_output_tokens": 3, "temperature": 0}
    async with served(keys=("one", "two")) as gateway:
        client = gateway.openai("one")
        first = await client.responses.create(input="Hello", instructions="Be", **ask)
        second = await client.responses.create(input=calls, previous_response_id=first.id, **ask)
        listed = client.responses.input_items.list
        items = [one async for one in listed(second.id, order="asc", limit=2)]
        latest = await listed(second.id)
        page = await listed(second.id, limit=2, after=latest.data[0].id)
        assert [one async for one in listed(first.id)] and [one async for one in listed(second.id)] == items[::-1]
        for query in ({"after": "msg_none"}, {"limit": 0}, {"limit": 101}, {"order": "up"}):
            with pytest.raises(openai.BadRequestError) as caught:
                await listed(second.id, **query)
            assert caught.value.param == next(iter(query))
        with pytest.raises(openai.NotFoundError):
            await gateway.openai("two").responses.input_items.list(second.id)
    assert [one.type for one in items] == ["message", "message", *(one["type"] for one in calls)]
    assert (items[0].role, items[0].content[0].text, items[1].content[0].text) == ("user", "Hello", first.output_text)
    assert len({one.id for one in items}) == 5
    assert page.data == latest.data[1:3] and page.has_more and not latest.has_more
    before, after = (turns("", "Hello"), turns("", msgspec.convert(calls, tuple[InputItem, ...])))
    again = msgspec.convert([one.model_dump(exclude_none=True) for one in items], tuple[InputItem, ...])
    assert turns("", again) == (*before, ChatTurn("assistant", first.output_text), *after)


@pytest.mark.parametrize("path", ["compact", "resp_1/cancel"])
async def test_what_is_not_done_with_a_response_says_what_to_do_instead(path):
    async with served() as gateway:
        answer = await gateway.post(f"/v1/responses/{path}", model="toy")
    assert answer.status_code == 404
    assert "close the connection" in answer.text or "ask the model for a summary" in answer.text


async def test_a_response_is_kept_for_its_own_key_and_only_if_it_may_be():
    ask = {"model": "toy", "input": "Hello", "max_output_tokens": 3}
    async with served(keys=("one", "two")) as gateway:
        kept = await gateway.openai("one").responses.create(**ask)
        free = await gateway.openai("one").responses.create(**ask, store=False)
        for key, ident in (("two", kept.id), ("one", free.id), ("one", "resp_none")):
            with pytest.raises(openai.NotFoundError) as caught:
                await gateway.openai(key).responses.create(**ask, previous_response_id=ident)
            assert caught.value.param == "previous_response_id"
        await gateway.openai("one").responses.create(**ask, previous_response_id=kept.id)


def test_a_turn_of_more_calls_than_can_be_is_refused_before_all_of_them_are_gathered():
    call = InputItem(type="function_call", call_id="1", name="f")
    assert len(turns("", (call,) * MAX_CALLS)[0].tool_calls) == MAX_CALLS
    with pytest.raises(ApiError, match="at most 1024 calls can follow one another"):
        turns("", (call,) * (MAX_CALLS + 1))


def test_the_oldest_conversations_make_room():
    turn = ChatTurn("user", "x" * 30)
    kept = Kept(most=3, most_bytes=3 * held("", "a", Conversation((turn,), b"")))
    for name in "abcd":
        kept.keep("", name, Conversation((turn,), b""))
    with pytest.raises(ApiError):
        kept.found("", "a")
    kept.keep("", "e", Conversation((turn, turn), b""))
    assert kept.found("", "e").turns == (turn, turn) and kept.found("", "d").turns == (turn,)
    for name in ("b", "c"):
        with pytest.raises(ApiError):
            kept.found("", name)
    kept.keep("", "huge", Conversation((ChatTurn("user", "x" * 10_000),), b""))
    with pytest.raises(ApiError):
        kept.found("", "huge")


@pytest.mark.parametrize(
    "turn",
    [
        lambda i: ChatTurn("assistant", "", tuple(ToolCall(f"{i}-{n}" + "i" * 50, f"{i}", "{}") for n in range(100))),
        lambda i: ChatTurn("assistant", "", (ToolCall("i" * 1000 + str(i), "n" * 1000 + str(i), ""),)),
        lambda i: ChatTurn("user", "\U0001f600" * 500 + str(i)),
        lambda i: ChatTurn("tool", "", (), "t" * 1000 + str(i)),
        lambda i: ChatTurn("user", str(i)),
    ],
)
def test_kept_conversations_hold_no_more_memory_than_is_said(turn):
    most = 1 << 17
    kept = Kept(most=1 << 30, most_bytes=most)
    tracemalloc.start()
    try:
        for number in range(600):
            kept.keep("", f"resp_{number}", Conversation((turn(number),), b"%d" % number))
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most / 2 < now < 1.6 * most  # the table itself takes a third of the small ones


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_says_the_sampling_that_the_model_itself_asks_for(stream):
    own = Sampling(temperature=0.6, top_p=0.9)
    cluster = Cluster(target=ToyTarget(ToyLanguage(), info=replace(INFO, sampling=own)))
    async with served(cluster) as gateway:
        ask = {"input": "Hello", "max_output_tokens": 3, "top_p": 0.5}
        if stream:
            found = (await gateway.events("/v1/responses", **ask))[0]["response"]
        else:
            found = (await gateway.post("/v1/responses", **ask)).json()
    assert (found["temperature"], found["top_p"]) == (0.6, 0.5)
