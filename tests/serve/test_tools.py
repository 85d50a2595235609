"""Function calling through each API with the stock clients: what the model is told, and what is made of its text."""

import json

import anthropic
import pytest

from protocols.messages import ChatTurn, Thinking, ToolCall
from tests.serve.gateway import served
from tests.serve.script import scripted

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather in a city", "parameters": CITY}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
TOOLS = [{"type": "function", **FUNCTION}]
CLAUDE_TOOLS = [{"name": "get_weather", "description": "Weather in a city", "input_schema": CITY}]
ASK = [{"role": "user", "content": "Weather in Paris?"}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TWO = f"I'll look.\n{CALL}\n{CALL.replace('Paris', 'Rome')}"


def claude(gateway):
    return anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0)


# --- chat completions ------------------------------------------------------------------------------------------------


async def chat(gateway, **options):
    return await gateway.openai().chat.completions.create(model="toy", messages=ASK, tools=CHAT_TOOLS, **options)


async def test_calls_in_the_text_become_tool_calls():
    async with served(scripted(TWO)) as gateway:
        (choice,) = (await chat(gateway)).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I'll look."
    assert [(call.type, call.function.name) for call in choice.message.tool_calls] == [("function", "get_weather")] * 2
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [
        {"city": "Paris"},
        {"city": "Rome"},
    ]
    assert len({call.id for call in choice.message.tool_calls}) == 2


async def test_without_parallel_calls_the_first_is_the_only_one_in_every_api():
    one = {"type": "auto", "disable_parallel_tool_use": True}
    async with served(scripted(f"{TWO} Done.")) as gateway:
        (choice,) = (await chat(gateway, parallel_tool_calls=False)).choices
        chunks = [chunk async for chunk in await chat(gateway, parallel_tool_calls=False, stream=True)]
        ask = {"model": "toy", "max_tokens": 99, "messages": ASK, "tools": CLAUDE_TOOLS, "tool_choice": one}
        blocks = (await claude(gateway).messages.create(**ask)).content
        items = (
            await gateway.openai().responses.create(
                model="toy", input="Weather?", tools=TOOLS, parallel_tool_calls=False
            )
        ).output
    streamed = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or () if call.id]
    assert len(choice.message.tool_calls) == len(streamed) == 1
    assert (choice.message.content, choice.finish_reason) == ("I'll look.Done.", "tool_calls")
    assert [block.type for block in blocks] == ["text", "tool_use", "text"]
    assert [item.type for item in items] == ["message", "function_call", "message"]
    assert items[1].arguments == '{"city": "Paris"}'


async def test_calls_without_text_have_no_content():
    async with served(scripted(CALL)) as gateway:
        (choice,) = (await chat(gateway)).choices
    assert choice.message.content is None


@pytest.mark.parametrize("piece", [3, 1000])
async def test_streamed_calls_come_name_first_then_their_arguments_as_they_are_written(piece):
    async with served(scripted(TWO, piece)) as gateway:
        chunks = [chunk async for chunk in await chat(gateway, stream=True, stream_options={"include_usage": True})]
    calls, text = {}, ""
    for delta in (choice.delta for chunk in chunks for choice in chunk.choices):
        text += delta.content or ""
        for call in delta.tool_calls or ():
            if call.id:
                assert call.index == len(calls)
                calls[call.index] = [call.function.name, call.function.arguments]
            else:
                calls[call.index][1] += call.function.arguments
    assert text == "I'll look."
    assert list(calls.values()) == [["get_weather", '{"city": "Paris"}'], ["get_weather", '{"city": "Rome"}']]
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage.completion_tokens > 0


async def everywhere(gateway, stop, **more):
    """(text, calls, the reason of the end) by each API, whole and streamed."""
    found = []
    for stream in (False, True):
        asked = await chat(gateway, stream=stream, **stop, **more)
        if stream:
            deltas = [choice for chunk in [one async for one in asked] for choice in chunk.choices]
            text = "".join(one.delta.content or "" for one in deltas)
            found.append((text, sum(len(one.delta.tool_calls or ()) for one in deltas), deltas[-1].finish_reason))
        else:
            (choice,) = asked.choices
            calls = len(choice.message.tool_calls or ())
            found.append((choice.message.content, calls, choice.finish_reason))
        ask = {"messages": ASK, "tools": CLAUDE_TOOLS, "max_tokens": 99, "model": "toy"}
        if "stop" in stop:
            ask["stop_sequences"] = stop["stop"]
        if stream:
            async with claude(gateway).messages.stream(**ask) as events:
                answer = await events.get_final_message()
        else:
            answer = await claude(gateway).messages.create(**ask)
        texts = [block.text for block in answer.content if block.type == "text"]
        found.append(("".join(texts), len(answer.content) - len(texts), answer.stop_reason))
    return found


async def test_a_call_inside_which_a_stop_string_ends_the_text_is_text():
    said = CALL.partition("is")[0]
    async with served(scripted(CALL)) as gateway:
        found = await everywhere(gateway, {"stop": ["is"]})
        behind = await everywhere(gateway, {"stop": ["\n</tool"]})
    assert found == [(said, 0, "stop"), (said, 0, "stop_sequence")] * 2
    assert [one[1:] for one in behind] == [(1, "tool_calls"), (1, "stop_sequence")] * 2


async def test_a_call_inside_which_a_stop_token_ends_the_text_is_text():
    async with served(scripted(CALL, 5)) as gateway:
        found = (await chat(gateway, extra_body={"stop_token_ids": [3 + len(CALL) // 5 - 4]})).choices[0]
    assert found.message.tool_calls is None and found.finish_reason == "stop"
    assert CALL.startswith(found.message.content) and '"arguments": {' in found.message.content


@pytest.mark.parametrize("arguments", ['{"city": "Pa\nris"}', '{"city": "Paris",}', '""', '["Paris"]', "7"])
async def test_a_call_that_no_client_can_read_is_text_in_every_api(arguments):
    text = CALL.replace('{"city": "Paris"}', arguments)
    async with served(scripted(text)) as gateway:
        found = await everywhere(gateway, {})
        items = (await gateway.openai().responses.create(model="toy", input="Weather?", tools=TOOLS)).output
        streamed = await gateway.openai().responses.create(model="toy", input="Weather?", tools=TOOLS, stream=True)
        last = [event async for event in streamed][-1].response.output
    assert found == [(text, 0, "stop"), (text, 0, "end_turn")] * 2
    assert [[one.content[0].text for one in made] for made in (items, last)] == [[text], [text]]


async def test_a_calls_arguments_that_a_template_reads_are_no_call_if_they_are_no_object():
    field = {"open_pattern": r"<call:(?P<name>\w+)>", "close": "</call>", "content": "json", "repeats": True}
    field["transform"] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
    template = json.dumps({"start_anchor": "x", "fields": {"tool_calls": field, "content": {"content": "text"}}})
    for arguments in ("[1]", '"x"', '""', "7", '{"a": NaN}', '{"a": 1,}', '{"a'):
        text = f"Well, <call:get_weather>{arguments}</call>"
        if arguments == '{"a':  # cut by a stop string
            text = text.removesuffix("</call>")
        async with served(scripted(text, response_template=template)) as gateway:
            (choice,) = (await chat(gateway)).choices
        assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")


@pytest.mark.parametrize("arguments", ['{"city": "Pa', "[]", "", '{"city": "Pa\nris"}', "Paris"])
async def test_a_history_may_hold_whatever_arguments_a_model_wrote(arguments):
    called = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    turns = [*ASK, {"role": "assistant", "tool_calls": [called]}, {"role": "tool", "content": "?", "tool_call_id": "c"}]
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": "?"},
    ]
    async with served(scripted("Fine.")) as gateway:
        await gateway.openai().chat.completions.create(model="toy", messages=turns, tools=CHAT_TOOLS)
        await gateway.openai().responses.create(model="toy", input=items, tools=TOOLS)
        asked = gateway.cluster.codec.asked
    assert [turns[1].tool_calls[0].arguments for turns, _ in asked] == [arguments or "{}"] * 2


async def test_an_answer_that_is_cut_off_inside_a_call_ends_by_length():
    async with served(scripted(CALL)) as gateway:
        (choice,) = (await chat(gateway, max_tokens=10)).choices
    assert choice.finish_reason == "length"
    assert '{"city": "Paris"}'.startswith(choice.message.tool_calls[0].function.arguments)


async def test_text_without_a_call_is_as_it_is():
    async with served(scripted(" No <tool> needed. \n")) as gateway:
        whole = (await chat(gateway)).choices[0]
        events = await gateway.events("/v1/chat/completions", messages=ASK, tools=CHAT_TOOLS)
    assert (whole.message.content, whole.finish_reason) == (" No <tool> needed. \n", "stop")
    assert whole.message.tool_calls is None
    assert "".join(c["delta"].get("content", "") for e in events for c in e["choices"]) == " No <tool> needed. \n"


async def test_the_model_is_told_of_tools_calls_and_results_but_of_no_tool_that_it_may_not_call():
    called = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "content": [{"type": "text", "text": "sunny"}], "tool_call_id": "c1"},
    ]
    async with served(scripted("Sunny.")) as gateway:
        await gateway.chat(messages=turns, tools=CHAT_TOOLS)
        none = await gateway.chat(messages=turns, tools=CHAT_TOOLS, tool_choice="none")
        count = await gateway.post("/tokenize", messages=turns, tools=CHAT_TOOLS)
        asked = gateway.cluster.codec.asked
    assert asked[0][0] == (
        ChatTurn("user", "Weather in Paris?"),
        ChatTurn("assistant", "", (ToolCall("c1", "get_weather", '{"city": "Paris"}'),)),
        ChatTurn("tool", "sunny", tool_call_id="c1"),
    )
    assert json.loads(asked[0][1]) == CHAT_TOOLS
    assert asked[1][1] == ""
    assert none.json()["choices"][0]["message"]["content"] == "Sunny."
    assert asked[2] == asked[0] and count.json()["count"] == 3


async def test_calls_that_a_client_does_not_name_are_named_and_answered_in_their_order():
    calls = [{"type": "function", "id": None, "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    results = [{"role": "tool", "content": text, "tool_call_id": None} for text in ("first", "second")]
    async with served(scripted("Fine.")) as gateway:
        answer = await gateway.chat(messages=[*ASK, {"role": "assistant", "tool_calls": calls}, *results])
        ((turns, _),) = gateway.cluster.codec.asked
    assert answer.status_code == 200, answer.text
    assert [turn.tool_call_id for turn in turns[2:]] == [call.id for call in turns[1].tool_calls]
    assert len({call.id for call in turns[1].tool_calls}) == 2


@pytest.mark.parametrize("tokens", range(1, 16))
async def test_markup_of_a_call_never_is_text_where_max_tokens_cuts_it_off(tokens):
    async with served(scripted(TWO)) as gateway:
        (whole,) = (await chat(gateway, max_tokens=tokens)).choices
        chunks = [chunk async for chunk in await chat(gateway, max_tokens=tokens, stream=True)]
        blocks = await claude(gateway).messages.create(model="toy", max_tokens=tokens, messages=ASK, tools=CLAUDE_TOOLS)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    said = "".join(block.text for block in blocks.content if block.type == "text")
    assert (whole.message.content or "") == streamed == said
    assert "I'll look.\n".startswith(said)
    assert (whole.finish_reason, chunks[-1].choices[0].finish_reason, blocks.stop_reason) == (
        "length", "length", "max_tokens",
    )  # fmt: skip


async def test_a_stream_that_is_cut_off_inside_a_call_ends_by_length_too():
    async with served(scripted(CALL)) as gateway:
        chunks = [chunk async for chunk in await chat(gateway, max_tokens=10, stream=True)]
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_an_agents_first_request_with_tools_of_the_providers_own_is_answered():
    custom = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "definition": "x"}}
    asked = {
        "input": "hi", "tools": [*TOOLS, {"type": "web_search"}, custom], "store": False, "stream": True,
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "medium"}, "text": {"verbosity": "low"},
        "client_metadata": {"a": "b"}, "prompt_cache_key": "k",
    }  # fmt: skip
    claude_code = {
        "model": "toy", "max_tokens": 32000, "system": [{"type": "text", "text": "Be", "cache_control": {}}],
        "messages": ASK,
        "tools": [{**CLAUDE_TOOLS[0], "eager_input_streaming": True}], "thinking": {"type": "adaptive"},
        "context_management": {"edits": []}, "output_config": {"effort": "high"}, "metadata": {"user_id": "u"},
    }  # fmt: skip
    async with served(scripted("Hello.")) as gateway:
        codex = await gateway.post("/v1/responses", **asked)
        claude = await gateway.post("/v1/messages?beta=true", **claude_code)
    assert (codex.status_code, claude.status_code) == (200, 200), codex.text + claude.text


async def test_without_a_choice_of_tools_what_looks_like_a_call_is_text():
    async with served(scripted(CALL)) as gateway:
        (choice,) = (await chat(gateway, tool_choice="none")).choices
    assert (choice.message.content, choice.finish_reason) == (CALL, "stop")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]'),
        ("llama", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}'),
    ],
)
async def test_each_family_has_its_form_whose_marks_are_special_tokens(form, text):
    async with served(scripted(text, 20, tool_form=form)) as gateway:
        (choice,) = (await chat(gateway)).choices
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Paris"}'
    assert choice.message.content is None


async def test_a_tokenizers_own_template_says_where_calls_stand():
    field = {"open_pattern": r"<call:(?P<name>\w+)>", "close": "</call>", "content": "json", "repeats": True}
    field["transform"] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
    template = json.dumps({"start_anchor": "x", "fields": {"tool_calls": field, "content": {"content": "text"}}})
    text = 'Well, <call:get_weather>{"city": "Paris"}</call>'
    async with served(scripted(text, response_template=template)) as gateway:
        (choice,) = (await chat(gateway)).choices
    assert choice.message.content == "Well,"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris"}


@pytest.mark.parametrize("template", ["nonsense", "[]", "{}", '{"fields": {"tool_calls": 7}}', "[" * 10_000])
async def test_a_verifier_whose_template_for_answers_is_none_has_its_calls_read_in_the_usual_form(template):
    async with served(scripted(TWO, response_template=template)) as gateway:
        (choice,) = (await chat(gateway)).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather", "get_weather"]


# --- responses -------------------------------------------------------------------------------------------------------


async def test_responses_have_items_for_text_and_calls():
    async with served(scripted(TWO)) as gateway:
        answer = await gateway.openai().responses.create(model="toy", input="Weather?", tools=TOOLS)
    assert [item.type for item in answer.output] == ["message", "function_call", "function_call"]
    assert answer.output_text == "I'll look."
    assert json.loads(answer.output[2].arguments) == {"city": "Rome"}
    assert (answer.status, answer.output[1].status, answer.tools[0].name) == ("completed", "completed", "get_weather")


async def test_responses_stream_each_item_from_its_beginning_to_its_end():
    async with served(scripted(TWO)) as gateway:
        stream = await gateway.openai().responses.create(model="toy", input="Weather?", tools=TOOLS, stream=True)
        events = [event async for event in stream]
    final = events[-1].response
    kinds = [event.type.removeprefix("response.") for event in events if "delta" not in event.type]
    call = ["output_item.added", "function_call_arguments.done", "output_item.done"]
    text = ["output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"]
    assert kinds == ["created", "in_progress", *text, *call, *call, "completed"]
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(event.output_index, event.arguments) for event in done] == [
        (1, '{"city": "Paris"}'),
        (2, '{"city": "Rome"}'),
    ]
    written = "".join(
        event.delta
        for event in events
        if event.type == "response.function_call_arguments.delta" and event.output_index == 2
    )
    assert written == '{"city": "Rome"}'
    assert final.output[1].call_id != final.output[2].call_id
    assert final.output_text == "I'll look."


@pytest.mark.parametrize("tokens", range(1, 36))
async def test_a_cut_response_says_of_each_item_whether_it_is_whole_alike_in_body_and_stream(tokens):
    text = f"<think>Hm, hm.</think>I'll look.\n{CALL}\n{CALL.replace('Paris', 'Rome')}"
    thinking = Thinking("<think>", "</think>")

    def told(answer):
        return answer.status, [(item.type, item.status) for item in answer.output]

    ask = {"model": "toy", "input": "Weather?", "tools": TOOLS, "max_output_tokens": tokens}
    async with served(scripted(text, thinking=thinking)) as gateway:
        whole = await gateway.openai().responses.create(**ask)
        events = [event async for event in await gateway.openai().responses.create(**ask, stream=True)]
    done = [(one.item.type, one.item.status) for one in events if one.type == "response.output_item.done"]
    assert told(whole) == told(events[-1].response)
    assert done == told(whole)[1]
    assert [status for _, status in done[:-1]] == ["completed"] * (len(done) - 1)
    for item in whole.output:
        if item.type == "function_call":
            assert (item.status == "completed") == item.arguments.endswith("}")
        if item.type == "reasoning":
            assert (item.status == "completed") == (5 * tokens >= len("<think>Hm, hm.</think>"))
    assert whole.usage.input_tokens_details.cache_write_tokens == 0


async def test_responses_take_calls_and_their_results_and_leave_out_what_they_do_not_know():
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Both."}]},
        {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call", "call_id": "2", "name": "get_weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "rain"}]},
    ]
    async with served(scripted("Fine.")) as gateway:
        await gateway.openai().responses.create(model="toy", input=items, tools=[{"type": "web_search"}, *TOOLS])
        ((turns, tools),) = gateway.cluster.codec.asked
    first, second = (ToolCall(item["call_id"], item["name"], item["arguments"]) for item in items[3:5])
    assert turns == (
        ChatTurn("user", "Weather?"),
        ChatTurn("assistant", "Both.", (first, second)),
        ChatTurn("tool", "sunny", tool_call_id="1"),
        ChatTurn("tool", "rain", tool_call_id="2"),
    )
    assert json.loads(tools) == CHAT_TOOLS


# --- messages --------------------------------------------------------------------------------------------------------


async def test_messages_have_blocks_for_text_and_calls():
    async with served(scripted(TWO)) as gateway:
        answer = await claude(gateway).messages.create(model="toy", max_tokens=99, messages=ASK, tools=CLAUDE_TOOLS)
    assert [block.type for block in answer.content] == ["text", "tool_use", "tool_use"]
    assert answer.content[0].text == "I'll look."
    assert [(block.name, block.input) for block in answer.content[1:]] == [
        ("get_weather", {"city": "Paris"}),
        ("get_weather", {"city": "Rome"}),
    ]
    assert answer.stop_reason == "tool_use"


async def test_messages_stream_blocks_that_the_anthropic_client_assembles():
    async with served(scripted(TWO)) as gateway:
        asked = claude(gateway).messages.stream(model="toy", max_tokens=99, messages=ASK, tools=CLAUDE_TOOLS)
        async with asked as stream:
            kinds = [(event.type, getattr(event, "index", None)) async for event in stream]
            final = await stream.get_final_message()
    blocks = [kind for kind in kinds if kind[0] in ("content_block_start", "content_block_stop")]
    assert blocks == [(f"content_block_{what}", at) for at in range(3) for what in ("start", "stop")]
    assert [block.input for block in final.content[1:]] == [{"city": "Paris"}, {"city": "Rome"}]
    assert final.stop_reason == "tool_use"


async def test_what_a_history_says_of_errors_and_refusals_is_shown_and_what_is_not_shown_is_named():
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no such city", "is_error": True}
    called = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    claudes = [*ASK, {"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
    refused = {"role": "assistant", "content": None, "refusal": "I cannot."}
    part = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}
    chats = [{**ASK[0], "name": "Ann"}, refused, {"role": "user", "content": "And?"}, part, ASK[0]]
    async with served(scripted("Well.")) as gateway:
        await gateway.post("/v1/messages", model="toy", max_tokens=9, messages=claudes)
        answer = await gateway.post("/v1/chat/completions", messages=chats)
        items = await gateway.post("/v1/responses", input=[{"role": "user", "content": "x"}, part])
        first, second, third = (turns for turns, _ in gateway.cluster.codec.asked)
    assert first[-1] == ChatTurn("tool", "Error: no such city", tool_call_id="t")
    assert [turn.content for turn in second[1::2]] == ["I cannot.", "I will not."]
    assert third[-1].content == "I will not."
    assert answer.headers["x-duoactor-warning"] == "ignored, for they have no effect here: messages[0].name"
    assert (answer.status_code, items.status_code) == (200, 200)


async def test_messages_take_calls_and_their_results():
    turns = [
        *ASK,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "Well?"},
            ],
        },
    ]
    async with served(scripted("Sunny.")) as gateway:
        await claude(gateway).messages.create(model="toy", max_tokens=9, messages=turns, tools=CLAUDE_TOOLS)
        counted = await claude(gateway).messages.count_tokens(model="toy", messages=turns, tools=CLAUDE_TOOLS)
        asked = gateway.cluster.codec.asked
    assert asked[0][0] == (
        ChatTurn("user", "Weather in Paris?"),
        ChatTurn("assistant", "I look.", (ToolCall("t1", "get_weather", '{"city":"Paris"}'),), reasoning="Hm."),
        ChatTurn("tool", "sunny", tool_call_id="t1"),
        ChatTurn("user", "Well?"),
    )
    assert json.loads(asked[0][1]) == CHAT_TOOLS
    assert asked[1] == asked[0] and counted.input_tokens == 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_tools_that_run_at_a_provider_are_left_out_and_named_in_a_header(path: str):
    others = [{"type": "web_search"}, {"type": "custom", "custom": {"name": "x"}}]
    asked = {"messages": [{"role": "user", "content": "Hello"}]} if "chat" in path else {"input": "Hello"}
    async with served() as gateway:
        made = await gateway.post(path, model="toy", tools=others, **asked)
    assert made.status_code == 200, made.text
    assert all(name in made.headers["x-duoactor-warning"] for name in ("tools[0] (web_search)", "tools[1] (custom)"))
