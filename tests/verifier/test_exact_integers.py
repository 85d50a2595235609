"""Constants of a JSON schema stay what they are, however large; no answer leaves its bounds."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from actors.verifier.sources.grammar import _translated
from actors.verifier.sources.integers import exact_grammar, exact_schema
from actors.verifier.sources.schemas import JSON_STYLE
from protocols.errors import RequestError
from protocols.messages import StructuredOutputs

BYTES = LLTokenizer("byte")
N = 9007199254740993  # 2^53 + 1: float64 has 2^53 and 2^53 + 2
MOST = 2**63 - 1024  # the largest float64 of 64 bits
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
KIND = {"const": N}


def allowed(outputs: StructuredOutputs, value) -> bool:
    text = value if isinstance(value, str) else json.dumps(value)
    matcher = LLMatcher(BYTES, _translated(outputs), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def takes(schema, value) -> bool:
    return allowed(StructuredOutputs(json_schema=json.dumps(schema)), value)


OBJECT = {
    "type": "object",
    "properties": {"id": INT64, "name": {"type": "string"}, "kind": KIND, "tags": {"$ref": "#/$defs/tags"}},
    "required": ["id", "kind"],
    "additionalProperties": False,
    "$defs": {"tags": {"type": "array", "items": {"type": "string"}}},
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"id": KIND, "below": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
            "required": ["id"],
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"const": N}, [N], [N - 1, N + 1]),
        ({"const": 10**30}, [10**30], [10**30 + 1]),
        ({"const": {"a": [N, "é"]}}, ['{"a": [9007199254740993, "é"]}'], [{"a": [N - 1, "e"]}]),
        ({"enum": [N, 1, "x", None]}, [N, 1, '"x"', None], [N - 1, 2]),
        ({"enum": [N, 1, "x"], "type": "integer"}, [N, 1], ['"x"']),
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
        ({"type": "array", "items": KIND, "minItems": 1, "maxItems": 2}, [[N], [N, N]], [[], [N] * 3, [N - 1]]),
        ({"type": "array", "prefixItems": [KIND, {"type": "null"}], "items": False, "minItems": 1},
         [[N], [N, None]], [[], [N, 3], [N, None, 1], [N - 1]]),
        ({"type": "array", "items": KIND}, [[], [N, N, N]], [[N + 1]]),
        (OBJECT, [{"id": MOST, "kind": N}, {"id": 1, "name": "x", "kind": N, "tags": ["y"]}],
         [{"id": 2**63, "kind": N}, {"id": 1}, {"id": 1, "kind": N, "more": 1}, {"kind": N}]),
        ({"type": "object", "properties": {"minimum": KIND}}, [{}, {"minimum": N, "x": [1]}, {"x": 1, "y": 2}],
         [{"minimum": N - 1}, {"x": 1, "minimum": N}]),
        (TREE,
         [{"id": N, "below": [{"id": N}, {"id": N, "below": []}]}],
         [{"id": N, "below": [{"id": N - 1}]}]),
    ],
)  # fmt: skip
def test_what_a_schema_says_of_large_integers_is_what_may_be_written(schema, right, wrong):
    assert [one for one in right if not takes(schema, one)] == []
    assert [one for one in wrong if takes(schema, one)] == []


def test_the_schemas_of_forced_calls_are_exact_too():
    lark = f'start: "<" a ">"\na: %json {json.dumps(OBJECT)}'
    outputs = StructuredOutputs(grammar=lark)
    assert allowed(outputs, f"<{json.dumps({'id': 1, 'kind': N})}>")
    assert not allowed(outputs, f"<{json.dumps({'id': 1, 'kind': N - 1})}>")
    small = 'start: %json {"const": 5}\nother: "%json {}" %json {"const": "%json {"} /%json {}/ // %json {}'
    style = f', "x-guidance": {json.dumps(JSON_STYLE)}}}'
    assert exact_grammar(small) == small.replace("5}", f"5{style}").replace('{"}', f'{{"{style}')


def plain(schema) -> str:
    return json.dumps({**schema, "x-guidance": JSON_STYLE} if isinstance(schema, dict) else schema)


def test_references_to_references_take_no_time():
    defs = {f"n{at}": {"anyOf": [{"$ref": f"#/$defs/n{at + 1}"}] * 2} for at in range(60)}
    schema = {"$ref": "#/$defs/n0", "$defs": {**defs, "n60": {"const": 1}}}
    assert exact_schema(schema) == (plain(schema), False)
    assert exact_schema({**schema, "$defs": {**defs, "n60": KIND}})[0].count(str(N)) == 1


def test_schemas_of_small_integers_are_llguidances_own():
    for schema in ({"const": 2**53}, {"type": "integer", "maximum": -(2**53)}, {"enum": [1.5]}, True, {"default": N}):
        assert exact_schema(schema) == (plain(schema), False)


@pytest.mark.parametrize("more", [{"not": {"const": 4}}, {"type": "array", "items": KIND, "uniqueItems": True}])
def test_what_cannot_be_spelt_out_is_refused_by_a_sentence(more):
    schema = more if "type" in more else {**KIND, **more}
    with pytest.raises(RequestError, match=r"structured_outputs cannot be used: \w+ beside integers beyond 2\^53"):
        takes(schema, 1)
