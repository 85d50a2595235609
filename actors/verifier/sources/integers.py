"""Integers beyond 2^53 in JSON schemas. llguidance reads a schema's numbers as float64, so those would be others.

Bounds are drawn in to the next float64. What holds such a constant is spelt out in Lark here, the constant as a text.
All else stays a ``%json`` of llguidance's own.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

MAX_RULES = 1000  # of one grammar: reporting an error in a chain of 3,000 terminals takes llguidance a minute
EXACT = 1 << sys.float_info.mant_dig  # float64 has every integer up to here
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
NAMED = frozenset(["properties", "patternProperties", "$defs", "definitions"])  # schemas by any names
LARGEST = int(math.nextafter(2.0**63, 0.0))  # the last float64 below 2^63
# the name of an inclusive bound, and the way inwards
BOUNDS = {
    "minimum": ("minimum", 1),
    "exclusiveMinimum": ("minimum", 1),
    "maximum": ("maximum", -1),
    "exclusiveMaximum": ("maximum", -1),
}
STRING = r'/"([^"\\\x00-\x1f]|\\["\\\/bfnrt]|\\u[0-9a-fA-F]{4})*"/'
JSON = re.compile(r"%json\s+(?=[{\[])")
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def exact_schema(schema: Any, style: Mapping[str, Any]) -> tuple[str, bool]:
    """A schema, or the Lark of it, with the numbers that it has; and whether it is Lark. ``style``: as ``x-guidance``
    has it. ValueError if it cannot be spelt out."""
    schema = _drawn_in(schema)
    rules = _Rules(schema, style)
    if not rules.needed(schema):
        return json.dumps(schema), False
    return f"start: {rules.of(schema)}\n{rules.text}", True


def exact_grammar(lark: str, style: Mapping[str, Any]) -> str:
    """The same for every schema that a Lark grammar names by ``%json``."""
    made: list[str] = []
    at = count = 0
    appended = ""
    for found in JSON.finditer(lark):
        if found.start() < at:
            continue
        try:
            read, end = json.JSONDecoder().raw_decode(lark, found.end())
        except ValueError:
            continue  # llguidance will say what is wrong with it
        schema = _drawn_in(read)
        rules = _Rules(schema, {**style, **_style(schema)}, f"exact{count}_")
        if rules.needed(schema):
            made += [lark[at : found.start()], rules.of(schema)]
            appended += f"\n{rules.text}"
            at, count = end, count + 1
        elif schema != read:
            made += [lark[at : found.end()], json.dumps(schema)]
            at = end
    return f"{''.join(made)}{lark[at:]}{appended}"


def _style(schema: Any) -> Mapping[str, Any]:
    found = schema.get("x-guidance") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


class _Rules:
    def __init__(self, root: Any, style: Mapping[str, Any], prefix: str = "exact") -> None:
        self._root, self._style, self._prefix = root, style, prefix
        self._comma = _text(style.get("item_separator", ", "))
        self._colon = style.get("key_separator", ": ")
        self._rules: list[str] = []
        self._references: dict[str, str] = {}
        self._names = 0

    @property
    def text(self) -> str:
        return "\n".join(self._rules)

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
                shared = {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}
                schema = {"x-guidance": self._style, **shared, **schema}
            return self._rule(f"%json {json.dumps(schema)}")
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
        found = self._root
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
        separators = (self._style.get("item_separator", ", "), self._colon)
        texts = (json.dumps(value, ensure_ascii=False, separators=separators) for value in values)
        return self._rule(" | ".join(map(_text, texts)))

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
            more = self._rule(f"{key} {_text(self._colon)} {self.of(others)}")
            ends = {
                False: self._rule(f'"" | {more} ({self._comma} {more})*'),
                True: self._rule(f"({self._comma} {more})*"),
            }
        for name, value in reversed(properties.items()):
            pair = f"{_text(json.dumps(name, ensure_ascii=False) + self._colon)} {self.of(value)} {ends[True]}"
            ends = {
                some: self._rule(
                    (f"{self._comma} {pair}" if some else pair) + ("" if name in required else f" | {ends[some]}")
                )
                for some in (False, True)
            }
        return self._rule(f'"{{" {ends[False]} "}}"')

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
                return self._rule(f'"[" {some} "]"' + ("" if least else ' | "[" "]"'))
        for at in reversed(range(len(places))):
            one = f"{self._comma + ' ' if at else ''}{places[at]} {tail}"
            tail = self._rule(one + (' | ""' if at >= least else ""))
        return self._rule(f'"[" {tail} "]"')

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


def _drawn_in(schema: Any) -> Any:
    """A schema with the bounds beyond 2^53 drawn in to the next float64, of which llguidance makes the same integer."""
    if isinstance(schema, list):
        return [_drawn_in(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    drawn: dict[str, Any] = {}
    for key, value in schema.items():
        name, way = BOUNDS.get(key, (key, 0))
        if way and isinstance(value, int) and _large(value):
            bound = _double(value + way * (key != name), way)
        else:
            name, bound = key, value
        if way and name in drawn:  # two bounds have become inclusive ones
            drawn[name] = max(bound, drawn[name]) if way > 0 else min(bound, drawn[name])
        elif key in NAMED and isinstance(value, dict):
            drawn[key] = {called: _drawn_in(one) for called, one in value.items()}
        else:
            drawn[name] = bound if key in ("const", "enum") else _drawn_in(bound)
    return drawn


def _double(bound: int, way: int) -> int:
    """The next integer in that direction that is a float64 and has 64 bits. ValueError if there is none."""
    double = float(bound)
    if int(double) != bound and (int(double) < bound) == (way > 0):
        double = math.nextafter(double, way * math.inf)
    drawn = min(max(int(double), -LARGEST), LARGEST)
    if (drawn - bound) * way < 0:
        raise ValueError(f"the bound {bound} leaves no integer of 64 bits")
    return drawn


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
