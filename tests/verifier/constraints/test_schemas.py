"""A caller's schema: numbers, annotations and white space as it says, and one spelling of each key."""

import json
import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from actors.verifier.constraints.grammar import translated
from actors.verifier.constraints.schemas import FORMATS, JSON_STYLE, normal
from duoactor.serve.thinking import Mind
from protocols.errors import RequestError
from protocols.messages import StructuredOutputs, Thinking

BYTES = LLTokenizer("byte")
MIND = Mind(Thinking("<think>", "</think>"), opened=False, allowed=True)


def follows(outputs: StructuredOutputs, text: str) -> bool:
    matcher = LLMatcher(BYTES, translated(outputs), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def places(schema):
    """The schema alone and behind a thought, each with what stands around its value."""
    alone = StructuredOutputs(json_schema=json.dumps(schema))
    yield alone, "{}"
    yield MIND.structure(alone, "param"), "<think>so</think>{}"


def taken(schema, text: str) -> bool:
    found = {follows(outputs, around.format(text)) for outputs, around in places(schema)}
    assert len(found) == 1, "alike alone and behind a thought"
    return found.pop()


ONE = {"const": 1}
NAMES = ["é", "name", 'q"\\/x', "a\nb", "\u2028", "😀", "\x7f"]
OPEN = {"type": "object", "properties": dict.fromkeys(NAMES, ONE)}
SPELLINGS = ['"\\u00e9"', '"\\u00E9"', '"n\\u0061me"', '"q\\u0022\\\\/x"', '"q\\"\\\\\\/x"', '"a\\u000ab"', '"\\u2028"',
             '"\\ud83d\\ude00"']  # fmt: skip


@pytest.mark.parametrize("others", [None, True, {}, {"type": "integer"}])
@pytest.mark.parametrize("names", [NAMES, ["é", "name"]])
def test_a_key_that_the_schema_names_has_one_spelling(others, names):
    schema = {**OPEN, "properties": dict.fromkeys(names, ONE)}
    schema |= {} if others is None else {"additionalProperties": others}
    for name in names:
        key = json.dumps(name, ensure_ascii=False)
        assert taken(schema, f"{{{key}: 1}}") and not taken(schema, f"{{{key}: 2}}")
    spellings = [key for key in SPELLINGS if json.loads(key) in names]
    assert [key for key in spellings if taken(schema, f"{{{key}: 2}}")] == [] and len(spellings) > 2
    for name in ("e", "nam", "names", 'q"', "", "日本"):
        assert taken(schema, json.dumps({"name": 1, name: 2}, ensure_ascii=False))
    assert taken(schema, '{"more": "text"}') == (others != {"type": "integer"})


@pytest.mark.parametrize("others", [None, True, {}, {"type": "integer"}])
def test_a_key_that_matches_a_pattern_has_one_spelling(others):
    text = {"type": "string"}
    schema = {"type": "object", "properties": {"b": ONE}, "patternProperties": {"^a": text, r"^x-\.": text}}
    schema |= {} if others is None else {"additionalProperties": others}
    for key in ("a", "ab", "x-.", "x-.é"):
        assert taken(schema, json.dumps({"b": 1, key: "t"}, ensure_ascii=False))
        assert not taken(schema, json.dumps({key: 1}, ensure_ascii=False))
    for key in ("x", "x-", "x-a", "ba", "A", "", "日本"):
        assert taken(schema, json.dumps({key: 5}, ensure_ascii=False))
        assert taken(schema, json.dumps({key: "t"}, ensure_ascii=False)) == (others != {"type": "integer"})
    for spelling in ('"\\u0061"', '"\\u0061b"', '"x\\u002d."', '"\\u0062"', '"\\u0078-."'):
        assert not taken(schema, f"{{{spelling}: 5}}")


@pytest.mark.parametrize("pattern", ["", "^", ".*", "^.*$"])
def test_beside_a_pattern_for_every_key_there_are_no_others(pattern):
    schema = {"type": "object", "patternProperties": {pattern: ONE}, "additionalProperties": {"type": "string"}}
    assert taken(schema, '{"a": 1}') and not taken(schema, '{"a": "t"}')


@pytest.mark.parametrize("pattern", ["^[a-z]+$", "b", "a$", "^a|b", "^a.", r"^\d"])
def test_a_pattern_whose_other_keys_cannot_be_told_wants_none(pattern):
    schema = {"type": "object", "patternProperties": {pattern: ONE}}
    with pytest.raises(RequestError, match="additionalProperties must be false beside the pattern"):
        taken(schema, "{}")
    closed = {**schema, "additionalProperties": False}
    assert taken(closed, "{}") and not taken(closed, '{"+": 1}')


def test_schemas_that_are_merged_still_name_their_keys():
    parts = [{"properties": {"é": ONE}}, {"properties": {"b": ONE}}, {"required": ["b"]}]
    schema = StructuredOutputs(json_schema=json.dumps({"type": "object", "allOf": parts}))
    assert follows(schema, '{"é": 1, "b": 1, "c": 2}') and not follows(schema, '{"é": 1}')
    assert not follows(schema, '{"b": 1, "\\u00e9": 2}') and not follows(schema, '{"é": 2, "b": 1}')
    either = {"type": "object", "properties": {"a": ONE, "b": ONE}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    schema = StructuredOutputs(json_schema=json.dumps(either))
    assert follows(schema, '{"b": 1}') and not follows(schema, "{}") and not follows(schema, '{"\\u0061": 2, "b": 1}')


def test_a_required_key_without_a_schema_follows_that_of_the_other_keys():
    schema = {
        "type": "object",
        "properties": {"a": ONE},
        "required": ["b"],
        "additionalProperties": {"type": "integer"},
    }
    outputs = StructuredOutputs(json_schema=json.dumps(schema))
    assert follows(outputs, '{"a": 1, "b": 5, "c": 6}')
    assert not any(follows(outputs, text) for text in ('{"a": 1}', '{"b": "x"}', '{"b": 5, "c": "x"}'))


@pytest.mark.parametrize("name", ["password", "binary", "uuid4", "decimal", "file-path", "idn-email", "regex", "int32"])
def test_a_format_that_the_grammar_does_not_know_is_an_annotation(name):
    assert taken({"type": "string", "format": name}, '"any text"')
    assert taken({"type": "object", "properties": {"format": {"const": name}}, "required": ["format"]},
                 json.dumps({"format": name}))  # fmt: skip


def test_the_formats_that_llguidance_knows_still_bind():
    for name in FORMATS:
        assert not taken({"type": "string", "format": name}, '"-"')


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "number", "maximum": 1e21}, ["1", "-3.5", "1000000000000000000"], ['"1"']),
        ({"type": "integer", "maximum": 1e21}, ["1", str(2**63 - 1024)], ["1.5"]),
        ({"type": "integer", "minimum": -1e21, "maximum": 10**400}, ["-5", "0"], []),
        ({"type": "number", "exclusiveMinimum": -1e300, "exclusiveMaximum": 1e300}, ["0.5"], []),
        ({"type": "integer", "exclusiveMaximum": 2**60 * 1.0}, [str(2**60 - 128)], [str(2**60)]),
        ({"type": "string", "maxLength": 3.0}, ['"abc"'], ['"abcd"']),
        ({"type": "string", "maxLength": 1e21}, ['"abcd"'], ["4"]),
        ({"type": "array", "items": ONE, "minItems": 2.0, "maxItems": 10**30}, ["[1, 1]"], ["[1]"]),
        ({"type": "number", "maximum": 2.5}, ["2.5"], ["2.6"]),
    ],
)
def test_bounds_and_counts_are_numbers_however_they_are_written(schema, right, wrong):
    assert [text for text in right if not taken(schema, text)] == []
    assert [text for text in wrong if taken(schema, text)] == []


def test_a_bound_that_leaves_nothing_is_refused_by_a_sentence():
    for bound in ({"minimum": 1e21}, {"maximum": -(10**30)}):
        with pytest.raises(RequestError, match="leaves no integer of 64 bits"):
            translated(StructuredOutputs(json_schema=json.dumps({"type": "number", **bound})))


PAIR = {"type": "array", "items": ONE, "minItems": 2, "maxItems": 2}
SPACED = {"type": "object", "properties": {"a": PAIR}, "required": ["a"], "additionalProperties": False}


def test_white_space_is_as_a_schema_asks_for_it_wherever_it_stands():
    texts = ['{"a": [1, 1]}', '{"a":[1,1]}', '{ "a" :\n[\t1 , 1 ]}', '{"a"; [1, 1]}']
    flexible = {**SPACED, "x-guidance": {"whitespace_flexible": True}}
    compact = {**SPACED, "x-guidance": {"item_separator": ",", "key_separator": ":"}}
    assert [taken(SPACED, text) for text in texts] == [True, False, False, False]
    assert [taken(flexible, text) for text in texts] == [True, True, True, False]
    alone = StructuredOutputs(json_schema=json.dumps(compact))
    for outputs, around in ((alone, "{}"), (MIND.structure(alone, ""), "<think>x</think>{}")):
        assert [follows(outputs, around.format(text)) for text in texts] == [False, True, False, False]


REFUSED = [
    ({"item_separator": ";"}, r"x-guidance.item_separator must be a comma"),
    ({"key_separator": " = "}, r"x-guidance.key_separator must be a colon"),
    ({"whitespace_flexible": 1}, r"x-guidance.whitespace_flexible must be true or false"),
    ({"whitespace_pattern": "x"}, r"x-guidance can have whitespace_flexible, .* not whitespace_pattern"),
    ({"lenient": True}, r"not lenient"),
    ("loose", r"x-guidance must be an object"),
]


@pytest.mark.parametrize(("guidance", "sentence"), REFUSED)
def test_what_would_make_invalid_json_is_refused_wherever_the_schema_stands(guidance, sentence):
    for outputs, _ in places({**SPACED, "x-guidance": guidance}):
        with pytest.raises(RequestError, match=sentence):
            translated(outputs)
    for outputs, _ in places({"type": "array", "items": {**SPACED, "x-guidance": {}}}):
        with pytest.raises(RequestError, match="can stand at the top of a schema only"):
            translated(outputs)


def test_a_property_may_be_called_as_a_keyword_is():
    schema = {
        "properties": {"x-guidance": {"type": "null"}, "maximum": {"maximum": 1e30}},
        "default": {"maximum": 1e30},
    }
    found = normal(schema)
    assert found["properties"]["x-guidance"] == {"type": "null"}
    assert found["properties"]["maximum"] == {"maximum": 2**63 - 1024} and found["default"] == schema["default"]


@pytest.mark.parametrize(
    ("regex", "text"), [(r"a\/b/c", "a/b/c"), (r"a\\/b", "a\\/b"), ("a\nb", "a\nb"), (r"\n", "\n")]
)
def test_a_regex_is_the_same_behind_a_thought(regex, text):
    alone = StructuredOutputs(regex=regex)
    assert follows(alone, text) and follows(MIND.structure(alone, ""), f"<think>x</think>{text}")


def test_schemas_inside_a_grammar_are_read_in_the_same_way():
    lark = f'start: "<" json ">"\njson: %json {json.dumps(OPEN)}'
    outputs = StructuredOutputs(grammar=lark)
    assert follows(outputs, '<{"é": 1}>') and not follows(outputs, '<{"\\u00e9": 2}>')
    assert not follows(outputs, '<{ "é":1}>'), JSON_STYLE


ODD = ['"', "\\", "a", "]", "-", "\n", "\t", "\x01", "é", "!", " ", "n", "u"]
# classes as Python reads them too
PATTERNS = [r'[^"]', r"[^\\]",
            r'[^"\\]', r"[^\x22]", r'[^"\n]', r'(?:a|[^"b])', r"[^!-~]", r"[\x00-\x1f]", r'[^]"]', r'[^"-]',
            r'\[[^"]|[^"]', r"[a-z]", r".", r"\S", r"\D", r"[^a]", r'[^\]"]', r"(?:[^\x00-\x1f\"]|\t)"]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_class_of_a_pattern_allows_what_it_says_and_no_quote_beside_it(pattern):
    for letter in ODD:
        right, value = bool(re.search(f"^(?:{pattern})$", letter)), json.dumps(letter, ensure_ascii=False)
        assert taken({"type": "string", "pattern": f"^(?:{pattern})$"}, value) == right, letter
        schema = {"type": "object", "patternProperties": {f"^q(?:{pattern})$": True}, "additionalProperties": False}
        assert taken(schema, f'{{"q{value[1:]}: 1}}') == right, letter


@pytest.mark.parametrize("pattern", [r"\P{P}", r"[^\p{P}]", r"\p{Cc}", r"[^[:punct:]]", r"[\x00-\x7f&&[^\x22\\]]"])
def test_classes_that_python_does_not_have_allow_no_quote_and_no_backslash_either(pattern):
    found = {one for one in ODD if taken({"type": "string", "pattern": f"^{pattern}$"}, json.dumps(one))}
    assert "\n" in found and not found & {'"', "\\"}
