"""Integers of a JSON schema stay integers, however large: the schema's constants and bounds are the answer's."""

import json
import random
import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from actors.verifier.sources.grammar import JSON_STYLE, _translated
from actors.verifier.sources.integers import _numbers, exact_grammar, exact_schema
from protocols.errors import RequestError
from protocols.messages import StructuredOutputs

BYTES = LLTokenizer("byte")
N = 9007199254740993  # 2^53 + 1: float64 has 2^53 and 2^53 + 2
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


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
    "properties": {"id": INT64, "name": {"type": "string"}, "kind": {"const": N}, "tags": {"$ref": "#/$defs/tags"}},
    "required": ["id", "kind"],
    "additionalProperties": False,
    "$defs": {"tags": {"type": "array", "items": {"type": "string"}}},
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"id": INT64, "below": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
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
        ({"enum": [N, 1, "x"], "type": "integer", "minimum": 2}, [N], [1, '"x"']),
        ({"type": "integer", "minimum": N, "maximum": N + 5}, [N, N + 5], [N - 1, N + 6]),
        ({"type": "integer", "exclusiveMinimum": N, "exclusiveMaximum": N + 3}, [N + 1, N + 2], [N, N + 3]),
        (INT64, [0, -1, 7, 2**63 - 1, -(2**63)], [2**63, -(2**63) - 1, "-0", "007", "1.5"]),
        ({"type": ["integer", "null"], "maximum": 2**64}, [None, 2**64, -(2**70)], [2**64 + 1, "x"]),
        ({"anyOf": [INT64, {"type": "string"}]}, [2**63 - 1, '"x"'], [2**63, "x"]),
        ({"type": "number", "maximum": N}, [N, "9007199254740992.5", "-0.5", 3], [N + 1, "9007199254740993.5"]),
        ({"type": "array", "items": INT64, "minItems": 1, "maxItems": 2}, [[1], [2**63 - 1, 2]], [[], [1, 2, 3]]),
        ({"type": "array", "prefixItems": [INT64, {"type": "null"}], "items": False, "minItems": 1},
         [[2], [2, None]], [[], [2, 3], [2, None, 1], [2**63]]),
        ({"type": "array", "items": INT64}, [[], [1, 2, 3]], [[2**63]]),
        (OBJECT, [{"id": 2**63 - 1, "kind": N}, {"id": 1, "name": "x", "kind": N, "tags": ["y"]}],
         [{"id": 2**63, "kind": N}, {"id": 1}, {"id": 1, "kind": N, "more": 1}, {"kind": N}]),
        ({"type": "object", "properties": {"id": INT64}}, [{}, {"id": 1, "x": [1]}, {"x": 1, "y": 2}],
         [{"id": 2**63}, {"x": 1, "id": 1}]),
        (TREE,
         [{"id": 1, "below": [{"id": 2}, {"id": 2**63 - 1, "below": []}]}],
         [{"id": 1, "below": [{"id": 2**63}]}]),
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
    small = 'start: %json {"const": 5}\nother: %json {"const": "%json {"}'
    assert exact_grammar(small, JSON_STYLE) == small


def test_references_to_references_take_no_time():
    defs = {f"n{at}": {"anyOf": [{"$ref": f"#/$defs/n{at + 1}"}] * 2} for at in range(60)}
    schema = {"$ref": "#/$defs/n0", "$defs": {**defs, "n60": {"const": 1}}}
    assert exact_schema(schema, JSON_STYLE) is None
    assert exact_schema({**schema, "$defs": {**defs, "n60": {"const": N}}}, JSON_STYLE).count(str(N)) == 1


def test_schemas_of_small_integers_are_llguidances_own():
    for schema in ({"const": 2**53}, {"type": "integer", "maximum": -(2**53)}, {"enum": [1.5]}, True, {"default": N}):
        assert exact_schema(schema, JSON_STYLE) is None


@pytest.mark.parametrize("more", [{"multipleOf": 3}, {"not": {"const": 4}}, {"type": "array", "uniqueItems": True}])
def test_what_cannot_be_spelt_out_is_refused_by_a_sentence(more):
    schema = {**INT64, "items": INT64, **more} if "type" in more else {**INT64, **more}
    with pytest.raises(RequestError, match=r"structured_outputs cannot be used: \w+ beside integers beyond 2\^53"):
        takes(schema, 1)


def test_ranges_hold_their_numbers_and_no_others():
    draw = random.Random(5)
    for _ in range(300):
        low, high = sorted(draw.choice((1, -1)) * draw.randrange(10 ** draw.randrange(1, 22)) for _ in range(2))
        pattern = re.compile(_numbers({"minimum": low, "maximum": high}, True))
        inside = [low, high, draw.randint(low, high)]
        outside = [low - 1, high + 1, low - draw.randrange(1, 10**20), high + draw.randrange(1, 10**20)]
        assert [one for one in inside if not pattern.fullmatch(str(one))] == []
        assert [one for one in outside if pattern.fullmatch(str(one))] == []
