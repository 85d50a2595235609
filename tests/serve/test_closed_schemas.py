"""Objects of a request's schema have no other keys than it names, as in llama.cpp, Ollama and vLLM."""

import pytest

from duoactor.serve.closed_schemas import closed

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
SHUT = {**NAME, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (NAME, SHUT),
        ({"type": "array", "items": NAME}, {"type": "array", "items": SHUT}),
        (
            {"$defs": {"a": NAME}, "anyOf": [{"$ref": "#/$defs/a"}, NAME]},
            {"$defs": {"a": SHUT}, "anyOf": [{"$ref": "#/$defs/a"}, SHUT]},
        ),
        (
            {"properties": {"if": NAME, "allOf": {}}},
            {"properties": {"if": SHUT, "allOf": {}}, "additionalProperties": False},
        ),
    ],
)
def test_an_object_has_the_keys_that_its_schema_names(schema, expected):
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**NAME, "additionalProperties": True},
        {**NAME, "additionalProperties": {"type": "integer"}},
        {**NAME, "patternProperties": {"^x-": {}}},
        {"allOf": [NAME, {"properties": {"age": {"type": "integer"}}}]},
        {**NAME, "anyOf": [{"properties": {"age": {}}, "required": ["age"]}, {"required": ["name"]}]},
        {"$defs": {"a": NAME}, "properties": {"b": {"properties": {}, "$ref": "#/$defs/a"}}},
        {"enum": [{"properties": {}}], "const": {"properties": {}}},
        {"properties": 5, "items": [NAME], "anyOf": 3, "additionalProperties": 1},
    ],
)
def test_an_object_that_may_have_others_or_is_made_of_parts_stays_as_it_is(schema):
    assert closed(schema) == schema


def test_a_schema_that_is_nested_too_deeply_stays_as_it_is():
    deep = NAME
    for _ in range(10_000):
        deep = {"items": deep}
    assert closed(deep) is deep
