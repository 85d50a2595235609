"""What the answer must be: each API's way to say it, and grammars that force a call which the parser reads."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer, grammar_from

from duoactor.serve.anthropic import messages as anthropic
from duoactor.serve.openai import chat, completions, responses
from duoactor.serve.tool_calls.events import Said
from duoactor.serve.tool_calls.forms import FORMS
from duoactor.serve.tool_calls.use import Calling
from protocols.messages import StructuredOutputs
from tests.serve.gateway import served
from tests.serve.parts import Called, gathered
from tests.serve.script import scripted

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANY = StructuredOutputs(json_schema='{"type": "object"}')
CITY = StructuredOutputs(json_schema=json.dumps({**SCHEMA, "additionalProperties": False}))
TURNS = {"messages": [{"role": "user", "content": "Hi"}]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "wait"}},
]
NAMED = {"type": "function", "function": {"name": "wait"}}


def question(api, **body):
    base = {chat: TURNS, completions: {"prompt": "Hi"}, responses: {"input": "Hi"}}
    base[anthropic] = {**TURNS, "model": "toy", "max_tokens": 9}
    return api.parse(json.dumps({**base[api], **body}).encode())[1]


ASKED = [
    (chat, {}, None, ""),
    (chat, {"response_format": {"type": "text"}}, None, ""),
    (chat, {"response_format": {"type": "json_object"}}, ANY, "response_format"),
    (chat, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, CITY, None),
    (chat, {"response_format": {"type": "json_object", "schema": SCHEMA}}, CITY, "response_format.schema"),
    (chat, {"structured_outputs": {"json": SCHEMA}}, CITY, "structured_outputs.json"),
    (chat, {"structured_outputs": {"json": json.dumps(SCHEMA)}}, CITY, "structured_outputs.json"),
    (chat, {"structured_outputs": {"json_object": True}}, ANY, "structured_outputs.json_object"),
    (chat, {"format": "json"}, ANY, "response_format"),
    (chat, {"format": SCHEMA}, CITY, None),
    (chat, {"json_schema": SCHEMA}, CITY, "structured_outputs.json"),
    (chat, {"guided_json": SCHEMA}, CITY, "structured_outputs.json"),
    (chat, {"guided_regex": "a|b"}, StructuredOutputs(regex="a|b"), "structured_outputs.regex"),
    (chat, {"guided_choice": ["a", "b"]}, StructuredOutputs(grammar='start: "a" | "b"'), "structured_outputs.choice"),
    (chat, {"guided_grammar": "start: /a/"}, StructuredOutputs(grammar="start: /a/"), "structured_outputs.grammar"),
    (chat, {"grammar": 'root ::= "a"'}, StructuredOutputs(grammar='root ::= "a"'), "structured_outputs.grammar"),
    (chat, {"grammar": ""}, None, ""),
    (completions, {"response_format": {"type": "json_object"}}, ANY, "response_format"),
    (responses, {"text": {"format": {"type": "json_object"}}}, ANY, "text.format"),
    (responses, {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}, CITY, None),
    (anthropic, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}, CITY, None),
]  # fmt: skip


@pytest.mark.parametrize(("api", "body", "expected", "param"), ASKED)
def test_each_api_says_in_its_own_way_what_the_answer_must_be(api, body, expected, param):
    outputs, blamed = question(api, **body).structure(Calling())
    assert outputs == expected
    assert param is None or blamed == param


def written(text: str, grammar: str) -> bool:
    """May this be an answer, to its end?"""
    matcher = LLMatcher(LLTokenizer("byte"), grammar_from("lark", grammar))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


PARIS, WAIT = ("get_weather", '{"city": "Paris"}'), ("wait", "{}")


def in_form(form, *calls):
    key = "parameters" if form == "llama" else "arguments"
    texts = [f'{{"name": "{name}", "{key}": {arguments}}}' for name, arguments in calls]
    if form == "mistral":
        return f"[TOOL_CALLS][{', '.join(texts)}]"
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts) if form == "hermes" else "; ".join(texts)


@pytest.mark.parametrize("form", FORMS)
def test_a_required_call_is_written_in_the_models_form_and_read_again(form):
    asked, calling = question(chat, tools=TOOLS, tool_choice="required", parallel_tool_calls=True), Calling(form)
    grammar = asked.structure(calling)[0].grammar
    for calls in ([PARIS], [WAIT], [PARIS, WAIT]):
        text = in_form(form, *calls)
        assert written(text, grammar) == (form != "llama" or len(calls) == 1)  # Llama's templates take one at once
        parser = asked.parser(calling)
        assert gathered(parser.feed(text) + parser.end()) == [Called(*call) for call in calls]
    for text in ("", "Hello", in_form(form, ("get_weather", "{}")), in_form(form, ("look", "{}")), '{"city": "x"}'):
        assert not written(text, grammar)


def test_a_named_function_is_called_once_and_no_other():
    flat = [{"type": "function", **one["function"]} for one in TOOLS]
    for asked in (
        question(chat, tools=TOOLS, tool_choice=NAMED),
        question(responses, tools=flat, tool_choice={"type": "function", "name": "wait"}),
        question(anthropic, tools=[{"name": "wait", "input_schema": {}}], tool_choice={"type": "tool", "name": "wait"}),
    ):
        outputs, param = asked.structure(Calling())
        assert written(in_form("hermes", WAIT), outputs.grammar)
        assert not written(in_form("hermes", PARIS), outputs.grammar)
        assert not written(in_form("hermes", WAIT, WAIT), outputs.grammar)
        assert param == "tools"


@pytest.mark.parametrize("several", [None, False, True])
def test_a_required_call_is_the_only_one_unless_several_are_asked_for(several):
    """A small model that may go on with another call goes on until its tokens end."""
    parallel = {} if several is None else {"parallel_tool_calls": several}
    disabled = {} if several is None else {"disable_parallel_tool_use": not several}
    flat = [{"type": "function", **one["function"]} for one in TOOLS]
    tools = [{"name": "wait", "input_schema": {}}]
    for asked in (
        question(chat, tools=TOOLS, tool_choice="required", **parallel),
        question(responses, tools=flat, tool_choice="required", **parallel),
        question(anthropic, tools=tools, tool_choice={"type": "any", **disabled}),
    ):
        for form in FORMS:
            grammar = asked.structure(Calling(form))[0].grammar
            assert written(in_form(form, WAIT), grammar)
            assert written(in_form(form, WAIT, WAIT), grammar) == (several is True and form != "llama")


def test_a_choice_of_the_models_own_binds_nothing():
    assert question(chat, tools=TOOLS).structure(Calling()) == (None, "")
    asked = question(chat, tools=TOOLS, tool_choice="none", response_format={"type": "json_object"})
    assert asked.structure(Calling()) == (ANY, "response_format")


def test_a_format_binds_the_answer_and_leaves_calls_free():
    asked = question(chat, tools=TOOLS, response_format={"type": "json_object"})
    outputs, param = asked.structure(Calling())
    assert param == "response_format"
    for text, parts in ((in_form("hermes", PARIS), [Called(*PARIS)]), ('{"a": 1}', [Said('{"a": 1}')])):
        assert written(text, outputs.grammar)
        parser = asked.parser(Calling())
        assert gathered(parser.feed(text) + parser.end()) == parts
    assert not written("Hello", outputs.grammar)


def test_mistrals_mark_is_its_special_token_where_it_has_one():
    asked = question(chat, tools=TOOLS, tool_choice="required")
    assert 'start: "[TOOL_CALLS]" "["' in asked.structure(Calling("mistral"))[0].grammar
    assert 'start: <[9]> "["' in asked.structure(Calling("mistral", mark=9))[0].grammar


CALLS = {"open": "<call>", "close": "</call>", "repeats": True, "content": "text"}
TEMPLATE = json.dumps({"fields": {"tool_calls": CALLS}})


async def test_the_gateway_learns_how_the_model_writes_calls():
    async with served(scripted("[TOOL_CALLS]", 12, tool_form="mistral", response_template=TEMPLATE)) as gateway:
        assert (await gateway.gateway.model()).calling == Calling("mistral", TEMPLATE, 3)
    async with served() as gateway:
        assert (await gateway.gateway.model()).calling == Calling("hermes", "", -1)
