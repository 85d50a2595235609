"""Integers beyond 2^53 as constants in JSON schemas. llguidance reads numbers as float64, so those would be others.

What holds such a constant is spelt out in Lark here, the constant as a text. All else stays a ``%json`` of
llguidance's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.verifier.sources.schemas import EXACT, GUIDANCE, NAMED, SPACE, in_lark, normal, spelt_once, style_of

Schema = Mapping[str, Any]

MAX_RULES = 1000  # rules of one grammar: reporting an error in a chain of 3,000 terminals takes llguidance a minute
NOTES = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "$schema",
        "$id",
        "$defs",
        "definitions",
        "x-guidance",
    ]
)
# as json.dumps writes one, so that each text has one spelling
STRING = r'/"([^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(0[0-7bef]|1[0-9a-f]))*"/'
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def exact_schema(schema: Any) -> tuple[str, bool]:
    """A schema, or the Lark of it, with the numbers that it has; and whether it is Lark. ValueError if it cannot be
    spelt out, or says what cannot be followed."""
    rules = _Rules(schema)
    if rules.needed(rules.root):
        return f"start: {rules.of(rules.root)}\n{rules.text}", True
    return rules.plain(rules.root), False


def exact_grammar(lark: str) -> str:
    """The same for every schema that a Lark grammar names by ``%json``."""

    def made(schema: Any, place: int) -> tuple[str, str]:
        rules = _Rules(schema, f"exact{place}_")
        if rules.needed(rules.root):
            return rules.of(rules.root), rules.text
        return f"%json {rules.plain(rules.root)}", ""

    return in_lark(lark, made)


class _Rules:
    def __init__(self, schema: Any, prefix: str = "exact") -> None:
        self.root, self._style, self._prefix = normal(schema), style_of(schema), prefix
        space = f"/{SPACE}/" if self._style["whitespace_flexible"] else ""
        self._around = f"{space} {{}} {space}".format
        self._comma, self._colon = (self._around(_text(self._style[f"{what}_separator"])) for what in ("item", "key"))
        self._rules: list[str] = []
        self._references: dict[str, str] = {}
        self._names = 0

    @property
    def text(self) -> str:
        return "\n".join(self._rules)

    def plain(self, schema: Any) -> str:
        """The JSON of a schema without such an integer, for llguidance."""
        if isinstance(schema, dict):
            schema = {**spelt_once(schema), GUIDANCE: self._style}
        return json.dumps(schema)

    def needed(self, schema: Any) -> bool:
        """Whether it has such an integer, or refers to a schema that has."""
        left, seen = [schema], set()
        while left:
            one = left.pop()
            if isinstance(one, list):
                left += one
            if not isinstance(one, dict):
                continue
            for key, value in one.items():
                if key in ("const", "enum"):
                    if _large(value):
                        return True
                elif key == "$ref" and isinstance(value, str):
                    if value not in seen:
                        seen.add(value)
                        left.append(self._resolve(value))
                elif key in NAMED - NOTES:
                    left += value.values() if isinstance(value, dict) else ()
                elif key not in NOTES:
                    left.append(value)
        return False

    def of(self, schema: Any) -> str:
        """The name of the rule of a schema."""
        if not self.needed(schema):
            if isinstance(schema, dict):
                shared = {name: self.root[name] for name in ("$defs", "definitions") if name in self.root}
                schema = {**shared, **schema}
            return self._rule(f"%json {self.plain(schema)}")
        if "$ref" in schema:
            return self._reference(schema)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                rest = {name: value for name, value in schema.items() if name != key}
                return self._one_of([_merged(rest, one) for one in schema[key]])
        if "allOf" in schema:
            rest = {name: value for name, value in schema.items() if name != "allOf"}
            for one in schema["allOf"]:
                rest = _merged(rest, one)
            return self.of(rest)
        if "const" in schema or "enum" in schema:
            return self._values(schema)
        kind = schema.get("type", "object" if "properties" in schema else "array" if "items" in schema else None)
        if isinstance(kind, list):
            return self._one_of([{**schema, "type": one} for one in kind])
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        raise ValueError("a schema with constants beyond 2^53 must say its type")

    # --- kinds of schemas --------------------------------------------------------------------------------------------

    def _reference(self, schema: Schema) -> str:
        where = schema["$ref"]
        _only(schema, "$ref")
        if where not in self._references:
            name = self._references[where] = self._name()
            self._rules.append(f"{name}: {self.of(self._resolve(where))}")
        return self._references[where]

    def _resolve(self, where: str) -> Any:
        found = self.root
        if not where.startswith("#"):
            return {}  # llguidance will refuse it
        for part in where.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                raise ValueError(f"the schema refers to {where}, which it does not have")
        return found

    def _one_of(self, schemas: Sequence[Any]) -> str:
        return self._rule(" | ".join(self.of(one) for one in schemas))

    def _values(self, schema: Schema) -> str:
        _only(schema, "const", "enum", "type")
        kinds = schema.get("type", list(KINDS))
        values = [
            value
            for value in ([schema["const"]] if "const" in schema else schema["enum"])
            if any(KINDS[kind](value) for kind in ([kinds] if isinstance(kinds, str) else kinds))
        ]
        if not values:
            raise ValueError("no value fits the schema")
        return self._rule(" | ".join(map(self._value, values)))

    def _value(self, value: Any) -> str:
        """The one way to write a value, but for white space."""
        if isinstance(value, dict):
            pairs = [f"{self._key(name)} {self._value(one)}" for name, one in value.items()]
            return f'"{{" {self._around(f" {self._comma} ".join(pairs))} "}}"'
        if isinstance(value, list):
            return f'"[" {self._around(f" {self._comma} ".join(map(self._value, value)))} "]"'
        return _text(json.dumps(value, ensure_ascii=False))

    def _key(self, name: str) -> str:
        return f"{_text(json.dumps(name, ensure_ascii=False))} {self._colon}"

    def _object(self, schema: Schema) -> str:
        _only(schema, "type", "properties", "required", "additionalProperties")
        others = schema.get("additionalProperties", True)
        required = schema.get("required", [])
        properties = {**schema.get("properties", {})}
        for name in required:
            properties.setdefault(name, others)
        # from the last to the first: what may follow where nothing, or something, stands before
        ends = {False: '""', True: '""'}
        if others is not False:
            named = " | ".join(_text(json.dumps(name, ensure_ascii=False)) for name in properties)
            key = self._rule(f"{STRING} & ~({named})" if named else STRING, terminal=True)
            more = self._rule(f"{key} {self._colon} {self.of(others)}")
            ends = {
                False: self._rule(f'"" | {more} ({self._comma} {more})*'),
                True: self._rule(f"({self._comma} {more})*"),
            }
        for name, value in reversed(properties.items()):
            pair = f"{self._key(name)} {self.of(value)} {ends[True]}"
            ends = {
                some: self._rule(
                    (f"{self._comma} {pair}" if some else pair) + ("" if name in required else f" | {ends[some]}")
                )
                for some in (False, True)
            }
        return self._rule(f'"{{" {self._around(ends[False])} "}}"')

    def _array(self, schema: Schema) -> str:
        _only(schema, "type", "items", "prefixItems", "minItems", "maxItems")
        first = schema.get("prefixItems", [])
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        others = schema.get("items", True)
        if others is False:
            most = min(most, len(first))
        if most < least:
            raise ValueError("no array fits the schema")
        places = [self.of(one) for one in first[: int(min(most, len(first)))]]
        tail = ""
        if most > len(places):
            item = self.of(others)
            fewest = max(0, least - len(places))
            limit = "" if most == math.inf else str(int(most) - len(places))
            tail = self._rule(f"({self._comma} {item}){{{fewest},{limit}}}")
            if not places:
                some = f"{item} ({self._comma} {item}){{{max(0, fewest - 1)},{limit and int(limit) - 1}}}"
                return self._rule(f'"[" {self._around(some)} "]"' + ("" if least else f' | "[" {self._around("")} "]"'))
        for at in reversed(range(len(places))):
            one = f"{self._comma + ' ' if at else ''}{places[at]} {tail}"
            tail = self._rule(one + (' | ""' if at >= least else ""))
        return self._rule(f'"[" {self._around(tail)} "]"')

    # --- names -------------------------------------------------------------------------------------------------------

    def _name(self) -> str:
        self._names += 1
        if self._names > MAX_RULES:
            raise ValueError(f"a schema with integers beyond 2^53 may have {MAX_RULES} parts at most")
        return f"{self._prefix}{self._names}"

    def _rule(self, body: str, terminal: bool = False) -> str:
        name = self._name().upper() if terminal else self._name()
        self._rules.append(f"{name}: {body}")
        return name


def _large(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_large, value.values()))
    if isinstance(value, list):
        return any(map(_large, value))
    return isinstance(value, int) and abs(value) > EXACT


def _only(schema: Schema, *keys: str) -> None:
    for key in schema:
        if key not in keys and key not in NOTES:
            raise ValueError(f"{key} beside integers beyond 2^53 is not supported")


def _merged(one: Schema, other: Any) -> dict[str, Any]:
    if not isinstance(other, dict):
        raise ValueError("true and false beside integers beyond 2^53 are not supported")
    for key in one.keys() & other.keys() - NOTES:
        if one[key] != other[key]:
            raise ValueError(f"{key} in two places beside integers beyond 2^53 is not supported")
    return {**one, **other}


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
