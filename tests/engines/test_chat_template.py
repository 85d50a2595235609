"""Tools in chat templates: each family's own way, and words for a template that knows none."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from actors.engines.text.chat_template import render, response_template, tool_form
from protocols.errors import RequestError
from protocols.messages import ChatTurn, ToolCall

TARGET = str(Path(__file__).parents[2] / "duoactor" / "pair" / "target")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
TURNS = [
    ChatTurn("user", "Look up."),
    ChatTurn("assistant", "", (ToolCall("call_0123456789abcdef", "look", '{"at": "the sky"}'),)),
    ChatTurn("tool", "It is blue.", tool_call_id="call_0123456789abcdef"),
]
# as the templates of the families go, without their preambles
QWEN = """{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}{% for call in m.tool_calls or [] -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}{% endfor %}"""
MISTRAL = """{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}{% for call in m.tool_calls or [] %}
{%- if call.id | length != 9 %}{{ raise_exception("nine characters!") }}{% endif -%}
[TOOL_CALLS][{"name": "{{ call.function.name }}", "id": "{{ call.id }}"}]{% endfor %}
{%- if m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }} {{ m.name }}{% endif %}{% endfor %}"""
LLAMA = """{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("This model only supports single tool-calls at once!") }}
{%- endif %}{% if builtin %}<|python_tag|>{% endif %}{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{
m.tool_calls[0].function.arguments | tojson }}}{% endif %}{% endfor %}"""
CODER = QWEN.replace("<tool_call>", "<tool_call>\n<function=")


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(TARGET)


def test_a_template_that_knows_tools_is_given_them_with_arguments_as_objects(tokenizer):
    tokenizer.chat_template = QWEN
    text = render(tokenizer, TURNS, json.dumps(TOOLS))
    assert text.startswith(f"<tools>{json.dumps(TOOLS[0])}</tools>")
    assert '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>' in text


def test_mistrals_templates_get_ids_of_nine_letters_and_the_name_with_the_result(tokenizer):
    tokenizer.chat_template = MISTRAL
    text = render(tokenizer, TURNS, json.dumps(TOOLS))
    assert '"id": "789abcdef"' in text
    assert "[TOOL_RESULTS]789abcdef look" in text


def test_a_template_that_knows_no_tools_is_told_in_words(tokenizer):
    text = render(tokenizer, [ChatTurn("system", "Be brief."), *TURNS], json.dumps(TOOLS))
    assert text.startswith("<s><|system|>\nBe brief.\n\n# Tools")
    assert json.dumps(TOOLS[0]) in text
    assert '<|assistant|>\n<tool_call>\n{"name": "look", "arguments": {"at": "the sky"}}\n</tool_call></s>' in text
    assert "<|user|>\n<tool_response>\nIt is blue.\n</tool_response>" in text
    assert render(tokenizer, TURNS[:1], json.dumps(TOOLS)).startswith("<s><|system|>\n# Tools")
    assert "# Tools" not in render(tokenizer, TURNS)


def test_what_a_template_refuses_is_a_sentence(tokenizer):
    tokenizer.chat_template = LLAMA
    twice = [ChatTurn("assistant", "", (TURNS[1].tool_calls[0],) * 2)]
    with pytest.raises(RequestError, match="only supports single tool-calls"):
        render(tokenizer, twice, json.dumps(TOOLS))


@pytest.mark.parametrize(("tools", "turns"), [("{", TURNS), ("[1]", TURNS), ("{}", TURNS)])
def test_tools_that_are_none_are_refused(tokenizer, tools, turns):
    with pytest.raises(RequestError, match="tools must be a JSON array"):
        render(tokenizer, turns, tools)


@pytest.mark.parametrize("arguments", ["[]", "{", "1"])
def test_arguments_that_are_no_object_are_refused(tokenizer, arguments):
    with pytest.raises(RequestError, match="arguments of the call of look"):
        render(tokenizer, [ChatTurn("assistant", "", (ToolCall("1", "look", arguments),))])


@pytest.mark.parametrize(
    ("template", "form", "answers"),
    [
        (QWEN, "hermes", False),
        (MISTRAL, "mistral", False),
        (LLAMA, "llama", False),
        (CODER, "hermes", True),
        (None, "", False),
        ({"default": "{{ x }}", "tool_use": LLAMA}, "llama", False),
    ],
)
def test_the_form_of_calls_is_read_from_the_template(template, form, answers):
    tokenizer = SimpleNamespace(chat_template=template)
    assert tool_form(tokenizer) == form
    assert bool(response_template(tokenizer)) == answers


def test_a_tokenizers_own_response_template_is_what_counts():
    field = {"open": "<call>", "close": "</call>", "content": "json", "repeats": True}
    tokenizer = SimpleNamespace(chat_template=QWEN, response_template={"fields": {"tool_calls": field}})
    assert json.loads(response_template(tokenizer))["fields"]["tool_calls"] == field
    tokenizer.response_template = {"fields": {"content": {}}}
    assert response_template(tokenizer) == ""
