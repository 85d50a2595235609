"""The model's text taken apart into text and calls, in each family's form, however the text is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duoactor.serve.openai.chat import parse
from duoactor.serve.tool_calls.channels import channel_parser
from duoactor.serve.tool_calls.events import Arguments, CallBegan, CallEnded, NoTools, Said
from duoactor.serve.tool_calls.forms import FORMS, form_parser
from duoactor.serve.tool_calls.use import Calling
from tests.serve.parts import Called, gathered

NAMES = ("get_weather", "search")

# What models of these families wrote, and what it means: a text, or (name, arguments).
RECORDED = {
    "Qwen2.5": (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}\n</tool_call>',
        [("get_weather", {"city": "Paris", "unit": "celsius"})],
    ),
    "Qwen2.5, two after a sentence": (
        "hermes",
        "I'll look up both.\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "get_weather", "arguments": {"city": "Tokyo {\\"x\\"}"}}\n</tool_call>',
        ["I'll look up both.", ("get_weather", {"city": "Paris"}), ("get_weather", {"city": 'Tokyo {"x"}'})],
    ),
    "Qwen3, thinking": (
        "hermes",
        '<think>\nThe user wants <b>.\n</think>\n\n<tool_call>\n{"name": "search", "arguments": {"q": ["a", "b]"]}}\n'
        "</tool_call>",
        ["<think>\nThe user wants <b>.\n</think>", ("search", {"q": ["a", "b]"]})],
    ),
    "Hermes 2 Pro, arguments first": (
        "hermes",
        '<tool_call>\n{"arguments": {"q": 1}, "name": "search"}\n</tool_call>\n',
        [("search", {"q": 1})],
    ),
    "a small model, a brace too many": (
        "hermes",
        '<tool_call>\n{"name": "search", "arguments": {"q": 1}}}\n</tool_call> Done.',
        [("search", {"q": 1}), "Done."],
    ),
    "a small model, a brace too few": (
        "hermes",
        '<tool_call>\n{"name": "search", "arguments": {"q": 1}\n</tool_call>\n<tool_call>{"name": "search"}',
        [("search", {"q": 1}), ("search", {})],
    ),
    "arguments as a string": (
        "hermes",
        '<tool_call>{"id": "1", "type": "function", "name": "search", "arguments": "{\\"q\\": 1}"}</tool_call>',
        [("search", {"q": 1})],
    ),
    "talk of tool calls": ("hermes", "Write <tool_call> and </tool_call>. ", ["Write <tool_call> and </tool_call>. "]),
    "Llama 3.1": (
        "llama",
        '{"name": "get_weather", "parameters": {"city": "Paris", "unit": "celsius"}}',
        [("get_weather", {"city": "Paris", "unit": "celsius"})],
    ),
    "Llama 3.1 with its tag": (
        "llama",
        '<|python_tag|>{"type": "function", "name": "search", "parameters": {"q": "x"}, "id": {"a": "}"}}',
        [("search", {"q": "x"})],
    ),
    "Llama 3.2, several": (
        "llama",
        '{"name": "search", "parameters": {"q": "x"}}; {"name": "get_weather", "parameters": {}}',
        [("search", {"q": "x"}), ("get_weather", {})],
    ),
    "Llama, python": ("llama", "<|python_tag|>print({1: 2})", ["<|python_tag|>print({1: 2})"]),
    "Llama, JSON that is an answer": (
        "llama",
        '{"name": "Bob", "parameters": 3}',
        ['{"name": "Bob", "parameters": 3}'],
    ),
    "Llama, more JSON": ("llama", '{"answer": [1, 2]} ', ['{"answer": [1, 2]} ']),
    "Mistral 7B v0.3": (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "VvvODy9mT"}]',
        [("get_weather", {"city": "Paris"})],
    ),
    "Mistral Nemo, two": (
        "mistral",
        '[TOOL_CALLS][{"name": "search", "arguments": {"q": "]"}}, {"name": "search", "arguments": {}}]',
        [("search", {"q": "]"}), ("search", {})],
    ),
    "Mistral Small 3.2": (
        "mistral",
        'Let me see.[TOOL_CALLS]get_weather[CALL_ID]3XhQnxLsT[ARGS]{"city": "Paris"}',
        ["Let me see.", ("get_weather", {"city": "Paris"})],
    ),
    "Magistral, two": (
        "mistral",
        '[TOOL_CALLS]search[ARGS]{"q": 1}[TOOL_CALLS]search{"q": 2}',
        [("search", {"q": 1}), ("search", {"q": 2})],
    ),
    "Mistral, no call": ("mistral", "[TOOL_CALLS] are [1, 2] in [brackets]", ["[TOOL_CALLS] are [1, 2] in [brackets]"]),
}


# Calls of no function: their arguments are no JSON object, or the text ends inside them.
BROKEN = {
    "a raw line break": '{"q": "a\nb"}',
    "a trailing comma": '{"q": 1,}',
    "single quotes": "{'q': 1}",
    "a comment": '{"q": 1 /* x */}',
    "Python's words": '{"q": None}',
    "no number": '{"q": NaN}',
    "half a character": '{"q": "\\ud800"}',
    "nothing": '""',
    "a text": '"Paris"',
    "a text that is none of an object": '"[1]"',
    "a list": "[1]",
    "a number": "7",
    "true": "true",
    "another call inside a text": '{"q": "[TOOL_CALLS]search{}<tool_call>{}\n"}',
}


def parsed(form, pieces, sure=False):
    parser = form_parser(FORMS[form], NAMES, sure)
    return [event for piece in pieces for event in parser.feed(piece)] + parser.end()


@pytest.mark.parametrize("model", RECORDED)
def test_what_a_model_wrote_is_taken_apart_whole_and_letter_by_letter(model):
    form, text, expected = RECORDED[model]
    for pieces in ([text], text):
        parts = gathered(parsed(form, pieces))
        assert [
            part.text if isinstance(part, Said) else (part.name, json.loads(part.arguments)) for part in parts
        ] == expected


@pytest.mark.parametrize("arguments", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", 'So: <tool_call>\n{"name": "search", "arguments": %s}\n</tool_call> Well.'),
        ("hermes", '<tool_call>{"arguments": %s, "name": "search"}</tool_call>'),
        ("llama", '{"name": "search", "parameters": %s}'),
        ("llama", '<|python_tag|>{"name": "search", "parameters": %s}'),
        ("mistral", '[TOOL_CALLS][{"name": "search", "arguments": %s}]'),
        ("mistral", "[TOOL_CALLS]search[ARGS]%s"),
        ("channels", "<|channel|>commentary to=functions.search <|constrain|>json<|message|>%s"),
    ],
)
def test_a_call_whose_arguments_are_no_json_object_is_text(form, text, arguments):
    text %= arguments
    for pieces in ([text], text):
        parser = channel_parser() if form == "channels" else form_parser(FORMS[form], NAMES)
        parts = gathered([event for piece in pieces for event in parser.feed(piece)] + parser.end())
        assert parts == [Said(text)]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "search", "arguments": {"q": "Par',
        '<tool_call>{"name": "search", "arguments": {"q": "<tool_call>{\\"name\\": ',
        '<tool_call>{"arguments": {"q": "Par',
        "<tool_call>",
    ],
)
def test_a_call_inside_which_the_text_ends_is_text_but_not_where_it_was_cut_off(text):
    assert gathered(parsed("hermes", text)) == [Said(text)]
    parser = form_parser(FORMS["hermes"], NAMES)
    parts = gathered([event for piece in text for event in parser.feed(piece)] + parser.end(cut=True))
    assert parts == ([Called("search", text.partition('"arguments": ')[2])] if '"search"' in text else [])


@pytest.mark.parametrize("name", ["", "n" * 257, "\\ud800"])
def test_a_call_with_a_name_that_no_message_can_carry_is_text(name):
    text = f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
    assert gathered(parsed("hermes", text)) == [Said(text)]


FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "search"),
        *('{"name": "search", "arguments": {"q": "a\\"}"}}', '{"name": "search", "parameters": "{}"}'),
        *('"name": "search"', '"arguments": {"q": [1, {}]}', '"id": 5', "null", "12", "text", "é", "<t"),
        *("{", "}", "[", "]", '"', "\\", ", ", ";", ": ", " ", "\n"),
    ]
)


@given(st.sampled_from(list(FORMS)), st.lists(FRAGMENTS, max_size=12).map("".join), st.data())
def test_where_a_text_is_cut_makes_no_difference(form, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    whole = parsed(form, [text])
    cut = parsed(form, [text[a:b] for a, b in pairwise([0, *cuts, len(text)])])
    assert gathered(cut) == gathered(whole) == gathered(parsed(form, text))
    for events in (whole, cut):
        kinds = [type(event) for event in events if isinstance(event, CallBegan | CallEnded)]
        assert kinds == [CallBegan, CallEnded] * (len(kinds) // 2)
    if not any(isinstance(part, Called) for part in gathered(whole)):
        assert "".join(part.text for part in gathered(whole)) == text


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(), st.text())), min_size=1, max_size=3),
    st.sampled_from(list(FORMS)),
)
def test_what_was_written_in_a_form_is_read_again(calls, form):
    def written(name, arguments, key="arguments"):
        return json.dumps({"name": name, key: arguments}, ensure_ascii=False)

    text = {
        "hermes": "\n".join(f"<tool_call>\n{written(*call)}\n</tool_call>" for call in calls),
        "llama": "; ".join(written(*call, "parameters") for call in calls),
        "mistral": f"[TOOL_CALLS][{', '.join(written(*call) for call in calls)}]",
    }[form]
    assert [(part.name, json.loads(part.arguments)) for part in gathered(parsed(form, [text]))] == calls


def test_a_call_comes_whole_unless_a_grammar_is_sure_that_it_ends():
    begun, rest = '<tool_call>{"name": "search", "arguments": {"q": ', '"Paris"}}</tool_call>'
    call = [CallBegan("search"), Arguments('{"q": "Paris"}'), CallEnded()]
    parser = form_parser(FORMS["hermes"], NAMES)
    assert (parser.feed(begun), parser.feed(rest)) == ([], call)
    parser = form_parser(FORMS["hermes"], NAMES, sure=True)
    assert parser.feed(begun) == [CallBegan("search"), Arguments('{"q": ')]
    assert parser.feed('"Par') == [Arguments('"Par')]
    assert parser.end(cut=True) == [CallEnded(whole=False)]


@pytest.mark.parametrize(
    ("more", "early"),
    [({}, False), ({"tool_choice": "required"}, True), ({"tool_choice": "required", "stop": "}"}, False)],
)
def test_required_calls_are_handed_on_as_they_are_written_where_nothing_stops_inside_them(more, early):
    function = {"type": "function", "function": {"name": "search", "parameters": {}}}
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": [function], **more}
    parser = parse(json.dumps(asked).encode())[1].parser(Calling())
    assert bool(parser.feed('<tool_call>\n{"name": "search", "arguments": {"q"')) == early


def test_without_tools_all_is_text():
    parser = NoTools()
    assert gathered([*parser.feed(" <tool_call>"), *parser.feed(""), *parser.feed("{} "), *parser.end()]) == [
        Said(" <tool_call>{} ")
    ]
