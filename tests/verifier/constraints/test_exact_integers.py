"""No answer leaves the bounds of a JSON schema, however large; constants that would become others are refused."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from actors.verifier.constraints.grammar import translated
from actors.verifier.constraints.schemas import JSON_STYLE, read_grammar, read_schema
from protocols.errors import RequestError
from protocols.messages import StructuredOutputs

BYTES = LLTokenizer("byte")
N = 9007199254740993  # 2^53 + 1: float64 has 2^53 and 2^53 + 2
MOST = 2**63 - 1024  # the largest float64 of 64 bits
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def allowed(outputs: StructuredOutputs, value) -> bool:
    text = value if isinstance(value, str) else json.dumps(value)
    matcher = LLMatcher(BYTES, translated(outputs), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def takes(schema, value) -> bool:
    return allowed(StructuredOutputs(json_schema=json.dumps(schema)), value)


OBJECT = {
    "type": "object",
    "properties": {"id": INT64, "name": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "minimum": N, "maximum": N + 5}, [N + 1, N + 5], [N - 1, N + 6]),
        ({"type": "integer", "exclusiveMinimum": N, "exclusiveMaximum": N + 3}, [N + 1], [N, N + 3]),
        ({"type": "integer", "exclusiveMinimum": -(2**62), "minimum": -(2**63), "maximum": 7},
         [512 - 2**62], [-(2**62)]),
        ({"type": "integer", "exclusiveMaximum": N + 9, "maximum": 2**62, "minimum": 7}, [N + 7], [N + 9, 2**61]),
        ({**INT64, "exclusiveMaximum": N, "maximum": -8}, [-8], [-7]),
        ({"type": "object", "properties": {"const": INT64}}, [{"const": MOST}], [{"const": 2**63}]),
        (INT64, [0, -1, 7, MOST, -MOST], [2**63, -(2**63) - 1, "007", "1.5"]),
        ({**INT64, "multipleOf": 3}, [0, 9], [2**63, 4]),
        ({"type": ["integer", "null"], "maximum": 2**64}, [None, MOST], [2**64 + 1, "x"]),
        (OBJECT, [{"id": MOST}, {"id": 1, "name": "x"}], [{"id": 2**63}, {"id": 1, "more": 1}, {}]),
    ],
)  # fmt: skip
def test_what_a_schema_says_of_large_integers_is_what_may_be_written(schema, right, wrong):
    assert [one for one in right if not takes(schema, one)] == []
    assert [one for one in wrong if takes(schema, one)] == []


def test_the_schemas_of_forced_calls_are_exact_too():
    lark = f'start: "<" a ">"\na: %json {json.dumps(OBJECT)}'
    outputs = StructuredOutputs(grammar=lark)
    assert allowed(outputs, f"<{json.dumps({'id': MOST})}>")
    assert not allowed(outputs, f"<{json.dumps({'id': 2**63})}>")
    small = 'start: %json {"const": 5}\nother: "%json {}" %json {"const": "%json {"} /%json {}/ // %json {}'
    style = f', "x-guidance": {json.dumps(JSON_STYLE)}}}'
    assert read_grammar(small) == small.replace("5}", f"5{style}").replace('{"}', f'{{"{style}')


def test_schemas_of_small_integers_are_llguidances_own():
    for schema in ({"const": 2**53}, {"type": "integer", "maximum": -(2**53)}, {"enum": [1.5]}, True, {"default": N}):
        styled = {**schema, "x-guidance": JSON_STYLE} if isinstance(schema, dict) else schema
        assert read_schema(schema) == json.dumps(styled)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": N},
        {"const": {"a": [-N]}},
        {"enum": [1, N]},
        {"type": "object", "properties": {"id": {"$ref": "#/$defs/kind"}}, "$defs": {"kind": {"const": N}}},
        {"anyOf": [{"type": "array", "items": {"enum": [N]}}, {"type": "null"}]},
    ],
)
def test_a_constant_that_float64_does_not_have_is_refused_by_a_sentence(schema):
    with pytest.raises(RequestError, match=r"the constant -?9007199254740993 is beyond 2\^53.* make it a string"):
        takes(schema, 1)
    with pytest.raises(RequestError, match="make it a string"):
        allowed(StructuredOutputs(grammar=f"start: %json {json.dumps(schema)}"), 1)
