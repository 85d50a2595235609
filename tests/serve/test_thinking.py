"""Thoughts of reasoning models: through each API, streamed and whole, with tools, a schema and a budget."""

import json
from itertools import pairwise

import anthropic
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duoactor.serve.anthropic.messages import MessagesAnswer
from duoactor.serve.parameters import Speculation
from duoactor.serve.question import Question
from duoactor.serve.structure import json_shape
from duoactor.serve.thinking import Mind, ThoughtParser, Wish, wish
from duoactor.serve.tool_calls.events import NoTools, Said, Thought
from duoactor.serve.tool_calls.forms import FORMS, form_parser
from duoactor.serve.tool_calls.use import Calling, Tool, ToolUse
from protocols.messages import UNCHANGED, ChatTurn, Chunk, Dictation, FinishReason, StructuredOutputs, Thinking
from tests.serve.gateway import TURNS, served
from tests.serve.parts import Called, gathered
from tests.serve.script import scripted

QWEN = Thinking("<think>", "</think>")
OPENED = Thinking("<think>", "</think>", opens=True, opens_on=True)
GPT_OSS = Thinking(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    ("<|start|>assistant", "<|channel|>final<|message|>"),
    (("<|channel|>", 5), ("<|message|>", 6), ("<|end|>", 7), ("<|start|>", 8), ("<|constrain|>", 3)),
)
ENDED = Thinking("<a>", "</a>", ("<r>",), after="</r>")
THOUGHT = "The user says hello.\nI answer."
TEXT = f"<think>\n{THOUGHT}\n</think>\n\nHello."
OPEN_TEXT = TEXT.removeprefix("<think>")

RECORDED = [
    (QWEN, False, TEXT, [Thought(THOUGHT), Said("Hello.")]),
    (QWEN, False, "<think>\n\n</think>\n\nHello.", [Said("Hello.")]),
    (QWEN, False, " Hello <think>x</think>", [Said(" Hello <think>x</think>")]),
    (QWEN, False, "<thin", [Said("<thin")]),
    (QWEN, False, "<think>\nstill", [Thought("still")]),
    (OPENED, True, OPEN_TEXT, [Thought(THOUGHT), Said("Hello.")]),
    (OPENED, True, "It is x < y </thin", [Thought("It is x < y </thin")]),
    (
        GPT_OSS,
        False,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        [Thought("Hm."), Said("Yes.")],
    ),
    (GPT_OSS, False, "<|channel|>final<|message|>Yes.", [Said("Yes.")]),
    (ENDED, False, "<a>Hm.</a><r>Yes.</r>", [Thought("Hm."), Said("Yes.")]),
    (ENDED, False, "<r>a</r>b</", [Said("a</r>b</")]),
]


def parsed(form, opened, pieces, rest=NoTools):
    parser = ThoughtParser(form, opened, rest())
    return gathered([event for piece in pieces for event in parser.feed(piece)] + parser.end())


@pytest.mark.parametrize(("form", "opened", "text", "expected"), RECORDED)
def test_thoughts_are_told_from_the_answer_whole_and_letter_by_letter(form, opened, text, expected):
    assert parsed(form, opened, [text]) == parsed(form, opened, text) == expected


ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CHANNELS = [
    ('<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>', [Called("f", '{"a": 1}')]),
    (" to=functions.f<|channel|>commentary json<|message|>{}<|call|>", [Called("f", "{}")]),
    (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.f<|message|>{}",
        [Said("I look."), Thought("So."), Called("f", "{}")],
    ),
    ("<|channel|>final<|message|>No call <|en", [Said("No call <|en")]),
    ("<|channel|>commentary to=functions.f <|con", []),  # it ends inside the markup
]


@pytest.mark.parametrize(("text", "expected"), CHANNELS)
@pytest.mark.parametrize("thought", [ANALYSIS, ""])
def test_calls_in_the_channels_of_gpt_oss_are_read_whole_and_letter_by_letter(thought, text, expected):
    calling = Calling(thinking=GPT_OSS)
    for pieces in ([thought + text], thought + text):
        found = parsed(GPT_OSS, False, pieces, lambda: ToolUse((Tool("f"),)).parser(calling, False))
        assert found == [Thought("Hm.")] * bool(thought) + expected


FRAGMENTS = st.sampled_from(["<think>", "</think>", "<th", "</th", "ink>", " ", "\n", "a", "<", '{"name": "f"}', "é"])


@given(st.booleans(), st.lists(FRAGMENTS, max_size=10).map("".join), st.data())
def test_where_a_text_with_thoughts_is_cut_makes_no_difference(opened, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]

    def tools():
        return form_parser(FORMS["hermes"], ["f"])

    assert parsed(QWEN, opened, pieces, tools) == parsed(QWEN, opened, [text], tools)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (wish(None, None, 0, {}), ""),
        (wish(None, "none", 0, {}), {"enable_thinking": False, "thinking": False}),
        (wish(None, "high", 0, {}), {"reasoning_effort": "high", "thinking_effort": "high"}),
        (wish(True, None, 5, {}), {"enable_thinking": True, "thinking": True}),
        (wish(True, None, 0, {"enable_thinking": False}), {"enable_thinking": False, "thinking": False}),
        (wish(None, None, 0, {"custom": [1]}), {"custom": [1]}),
    ],
)
def test_the_chat_template_is_told_whether_to_think(body: Wish, expected):
    found = body.rendered(QWEN)
    assert (json.loads(found) if found else "") == expected


def test_a_model_without_thoughts_is_told_of_the_callers_own_variables_alone():
    assert wish(True, "high", 9, {}).rendered(Thinking()) == ""
    assert wish(True, "high", 9, {"custom": 1}).rendered(Thinking()) == '{"custom": 1}'


def test_a_budget_ends_a_thought_that_was_begun_and_nothing_else():
    assert Mind.of(OPENED, None, None).dictation(8) == Dictation(8, text="</think>")
    assert Mind.of(QWEN, None, None).dictation(8) == Dictation(9, text="</think>", behind="<think>")
    assert Mind.of(OPENED, False, None).dictation(8) is None
    assert Mind.of(Thinking(), True, None).dictation(8) is None


# --- through the APIs ------------------------------------------------------------------------------------------------

ASK = {"messages": TURNS}
CLAUDE = {**ASK, "model": "toy", "max_tokens": 99}


@pytest.mark.parametrize(("form", "text"), [(QWEN, TEXT), (OPENED, OPEN_TEXT)])
@pytest.mark.parametrize("piece", [3, 1000])
async def test_chat_completions_have_the_thought_beside_the_content(form, text, piece):
    async with served(scripted(text, piece, thinking=form)) as gateway:
        whole = (await gateway.chat(max_tokens=99)).json()
        events = await gateway.events("/v1/chat/completions", **ASK, stream_options={"include_usage": True})
    message = whole["choices"][0]["message"]
    assert message["content"] == "Hello."
    assert message["reasoning_content"] == message["reasoning"] == THOUGHT
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == THOUGHT
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello."
    if piece == 3:
        usage = whole["usage"]
        thought = usage["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < thought < usage["completion_tokens"]
        assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought


async def test_responses_have_an_item_for_the_thought():
    async with served(scripted(TEXT, thinking=QWEN)) as gateway:
        whole = await gateway.openai().responses.create(model="toy", input="Hi")
        stream = await gateway.openai().responses.create(model="toy", input="Hi", stream=True)
        events = [event async for event in stream]
    for answer in (whole, events[-1].response):
        assert [item.type for item in answer.output] == ["reasoning", "message"]
        assert answer.output[0].content[0].text == THOUGHT
        assert answer.output_text == "Hello."
        assert answer.usage.output_tokens_details.reasoning_tokens > 0
    written = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert written == THOUGHT


async def test_messages_have_a_block_for_the_thought():
    client_options = {"api_key": "none", "max_retries": 0}
    asked = {**CLAUDE, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    async with served(scripted(TEXT, thinking=QWEN)) as gateway:
        client = anthropic.AsyncAnthropic(base_url=gateway.url, **client_options)
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
    for answer in (whole, streamed):
        assert [block.type for block in answer.content] == ["thinking", "text"]
        assert answer.content[0].thinking == THOUGHT
        assert answer.content[1].text == "Hello."
    assert "thinking" in kinds


async def test_a_thought_in_the_history_goes_back_to_the_template():
    thought = {"role": "assistant", "content": "Hello.", "reasoning_content": THOUGHT}
    block = [{"type": "thinking", "thinking": THOUGHT, "signature": ""}, {"type": "text", "text": "Hello."}]
    items = [
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": THOUGHT}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
    ]
    asked = [*TURNS, {"role": "user", "content": "And?"}]
    async with served(scripted("Fine.", thinking=QWEN)) as gateway:
        for path, body in (
            ("/v1/chat/completions", {"messages": [asked[0], thought, asked[1]]}),
            ("/v1/messages", {**CLAUDE, "messages": [asked[0], {"role": "assistant", "content": block}, asked[1]]}),
            ("/v1/responses", {"input": [asked[0], *items, asked[1]]}),
        ):
            answer = await gateway.post(path, **body)
            assert answer.status_code == 200, answer.text
        found = [turns for turns, _ in gateway.cluster.codec.asked]
    assert [turns[1] for turns in found] == [ChatTurn("assistant", "Hello.", reasoning=THOUGHT)] * 3


async def test_tools_are_called_behind_the_thought():
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    text = f"<think>\nI could write <tool_call> here.\n</think>\n\n{call}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with served(scripted(text, 20, thinking=QWEN)) as gateway:
        choice = (await gateway.chat(tools=tools, max_tokens=99)).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "I could write <tool_call> here."
    assert choice["message"]["content"] is None
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("tokens", range(1, 12))
async def test_markup_of_a_thought_never_is_text_where_max_tokens_cuts_it_off(tokens):
    async with served(scripted(TEXT, 6, thinking=QWEN)) as gateway:
        message = (await gateway.chat(max_tokens=tokens)).json()["choices"][0]["message"]
    assert "think" not in message["content"] + message.get("reasoning", "")


# --- grammars --------------------------------------------------------------------------------------------------------


def allowed(wanted: StructuredOutputs, text: str, form: Thinking = QWEN) -> bool:
    """May this be an answer, to its end? A token is a byte, or a special token of ``form``."""
    from llguidance import LLMatcher, LLTokenizer, grammar_from

    for name, ident in form.special:
        text = text.replace(name, chr(ident))
    matcher = LLMatcher(LLTokenizer("byte"), grammar_from("lark", wanted.grammar))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


WANTED = [
    (StructuredOutputs(json_schema='{"type": "object", "properties": {"a": {"const": 1}}}'), '{"a": 1}'),
    (StructuredOutputs(regex="[a-z]+/[0-9]"), "ab/7"),
    (StructuredOutputs(grammar='start: "yes" | no\nno: "no" /[!]+/'), "no!!"),
]


@pytest.mark.parametrize(("wanted", "text"), WANTED)
def test_a_form_binds_the_answer_and_leaves_the_thought_free(wanted, text):
    optional, opened = (Mind.of(form, None, None).structure(wanted, "p") for form in (QWEN, OPENED))
    off = Mind.of(QWEN, False, None).structure(wanted, "p")
    assert off == wanted
    assert allowed(optional, text) and allowed(optional, f"<think>\nHm.\n\n1 < 2</think>\n\n{text}")
    assert allowed(opened, f"\nHm </p></think>\n\n{text}") and allowed(opened, f"</think>{text}")
    for wrong in ("Hm.", "<think>Hm.", f"<think>Hm.</think>\n\n{text}x", f"1{text}"):
        assert not allowed(optional, wrong)
    assert not allowed(opened, text)


F = Tool("f", parameters={"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
FINAL = '<|channel|>final<|message|>{"b": 2}'


@pytest.mark.parametrize("schema", [None, {"const": {"b": 2}}])
@pytest.mark.parametrize("thought", [ANALYSIS, ""])
def test_a_call_that_gpt_oss_has_to_make_stands_in_a_channel_behind_the_thought(thought, schema):
    calling = Calling(thinking=GPT_OSS)
    shape = None if schema is None else json_shape(schema, "p")
    tools = ToolUse((F,), "auto" if schema else "required")
    asked = Question(((ChatTurn("user", "Hi"),),), UNCHANGED, Speculation(), shape, tools, thinking=Wish())
    wanted, _ = asked.structure(calling)
    assert allowed(wanted, thought + CALL, GPT_OSS)
    assert allowed(wanted, thought + FINAL, GPT_OSS) is bool(schema)
    for wrong in (f"{thought}{CALL}{CALL}", thought, "Hm.", f"{thought}{CALL.replace('1', '2')}"):
        assert not allowed(wanted, wrong, GPT_OSS)
    parser = asked.parser(calling)
    assert gathered(parser.feed(thought + CALL) + parser.end())[-1] == Called("f", '{"a": 1}')


def test_a_long_thought_is_one_piece_of_a_whole_answer():
    """What was quadratic took seconds of the event loop here."""
    answer = MessagesAnswer(None, "m", lambda: ThoughtParser(OPENED, True, NoTools()))
    pieces = ("hm", *(" word" for _ in range(80_000)))
    last = Chunk("r", 0, (5,) * len(pieces), pieces, (True,) * len(pieces), finish_reason=FinishReason.LENGTH)
    assert answer.read(0, [last]) == [Thought("".join(pieces))]


@pytest.mark.parametrize("on", [None, True, False])
def test_a_form_forces_no_mark_in_front_of_an_answer_that_the_prompt_ends_with(on):
    kimi = Thinking("<|a|>", "<|b|>", ("<|c|>",), opens=True, opens_on=True, answers_off=True)
    wanted = StructuredOutputs(json_schema="{}")
    found = Mind.of(kimi, on, None).structure(wanted, "x")
    if on is False:
        assert found == wanted
    else:
        assert '"<|c|>"' in found.grammar
    older = msgspec.structs.replace(kimi, answers_off=False)
    assert Mind.of(older, False, None).structure(wanted, "x").grammar.startswith('start: "<|c|>" answer')


def test_an_effort_is_told_by_each_name_that_templates_have_for_it():
    shown = Wish(effort="high").rendered(Thinking("<think>", "</think>"))
    assert json.loads(shown) == {"reasoning_effort": "high", "thinking_effort": "high"}
