"""Integers of a schema that doubles cannot hold: no answer breaks a bound, and no constant becomes another one."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from actors.verifier.sources.grammar import _translated
from protocols.errors import RequestError
from protocols.messages import StructuredOutputs

BYTES = LLTokenizer("byte")
N = 9007199254740993  # 2^53 + 1: a double has 2^53 and 2^53 + 2
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def wanted(schema, forced: bool) -> StructuredOutputs:
    text = json.dumps(schema)
    return StructuredOutputs(grammar=f"start: %json {text}") if forced else StructuredOutputs(json_schema=text)


def takes(outputs: StructuredOutputs, value) -> bool:
    matcher = LLMatcher(BYTES, _translated(outputs), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(json.dumps(value).encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


@pytest.mark.parametrize("forced", [False, True])
def test_ids_of_64_bits_are_taken_and_those_beyond_are_not(forced):
    outputs = wanted({"type": "object", "properties": {"id": INT64}, "required": ["id"]}, forced)
    for value in (0, -7, N, -N, 2**62 + 1):
        assert takes(outputs, {"id": value})
    for value in (2**63, -(2**63) - 1, 10**25):
        assert not takes(outputs, {"id": value})


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(("key", "right", "wrong"), [("minimum", N + 1, N - 1), ("maximum", N - 1, N + 1)])
def test_a_bound_between_two_doubles_holds(key, right, wrong, forced):
    outputs = wanted({"type": "integer", key: N}, forced)
    assert takes(outputs, right) and not takes(outputs, wrong)


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("schema", [{"const": N}, {"enum": [1, N]}, {"const": {"a": [N]}}, {"anyOf": [{"const": -N}]}])
def test_a_constant_that_would_be_rounded_is_refused(schema, forced):
    with pytest.raises(RequestError, match=r"beyond 2\^53.*ask for a string"):
        _translated(wanted(schema, forced))


def test_a_bound_that_no_integer_of_64_bits_keeps_is_refused():
    with pytest.raises(RequestError, match="leaves no integer of 64 bits"):
        _translated(wanted({"type": "integer", "minimum": 2**64}, False))


def test_other_schemas_stay_as_they_are():
    schema = {"properties": {"minimum": {"type": "integer", "maximum": 5}, "const": {"type": "string"}}}
    assert takes(wanted(schema, False), {"minimum": 5, "const": "x"})
    assert not takes(wanted(schema, False), {"minimum": 6, "const": "x"})
