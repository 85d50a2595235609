"""JSON schemas of requests, closed: an object has no other keys than its schema names, unless that says it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NAMED, LISTED = ("properties", "$defs", "definitions"), ("anyOf", "oneOf", "prefixItems")
# An object that a schema puts together from parts, each of which would refuse the others' keys
PARTS = {"allOf", "not", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef"}
BESIDE = {"anyOf", "oneOf", "$ref"}
SAID = {"additionalProperties", "patternProperties"}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that llama.cpp, Ollama and vLLM make of it: a small model would write keys of its own until its tokens
    end. A schema that combines an object from parts stays as it is."""
    try:
        whole = not any(part.keys() & PARTS or ("properties" in part and part.keys() & BESIDE) for part in _all(schema))
        return _closed(schema) if whole else schema
    except RecursionError:  # the compiler refuses it
        return schema


def _all(schema: object) -> Iterator[dict[str, Any]]:
    """The schema and all in it."""
    if isinstance(schema, dict):
        yield schema
        for part in _below(schema):
            yield from _all(part)


def _below(schema: dict[str, Any]) -> Iterator[object]:
    for name in NAMED:
        yield from found.values() if isinstance(found := schema.get(name), dict) else ()
    for name in LISTED:
        yield from found if isinstance(found := schema.get(name), list) else ()
    yield schema.get("items")


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name in NAMED:
        if isinstance(found := schema.get(name), dict):
            made[name] = {key: _closed(part) for key, part in found.items()}
    for name in LISTED:
        if isinstance(found := schema.get(name), list):
            made[name] = [_closed(part) for part in found]
    if "items" in schema:
        made["items"] = _closed(schema["items"])
    if "properties" in schema and not schema.keys() & SAID:
        made["additionalProperties"] = False
    return made
