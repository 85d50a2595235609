"""A caller's JSON schema as llguidance should read it.

llguidance reads numbers as float64, which has no integers beyond 2^53 but some: bounds there are drawn in, and
constants refused. Annotations are dropped, and each key of an object can be spelt in one way only.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

EXACT = 1 << sys.float_info.mant_dig  # float64 has every integer up to here
# schemas by any names
NAMED = frozenset(["properties", "patternProperties", "dependentSchemas", "$defs", "definitions"])
VALUES = frozenset(["const", "enum", "default", "examples"])  # no schemas
# formats that llguidance has a grammar of
FORMATS = frozenset(["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"])
COUNTS = frozenset(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"])
MOST_COUNTED = 1 << 31  # no answer holds as many
LARGEST = int(math.nextafter(2.0**63, 0.0))  # the last float64 below 2^63
# the name of an inclusive bound, and the way inwards
BOUNDS = {
    "minimum": ("minimum", 1),
    "exclusiveMinimum": ("minimum", 1),
    "maximum": ("maximum", -1),
    "exclusiveMaximum": ("maximum", -1),
}
CLASSES = ("\\p", "\\P")  # classes by a property
_CLASS = re.compile(r"\\[pP](?:\{[^}]*\}|.)|\\.|\[", re.DOTALL)  # and other escapes
_IN_CLASS = re.compile(r"\\.|\[\^?\]?|\]", re.DOTALL)  # a bracket behind the first one is a letter
GUIDANCE = "x-guidance"
# JSON as Python's json and most chat models write it. llguidance's default allows any white space between two tokens:
# weak models then write white space without end, and hardly any token is forced.
JSON_STYLE: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
FLEXIBLE: Mapping[str, Any] = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}
SPACE = r"[ \t\n\r]*"
SEPARATORS = {"item_separator": re.compile(f"{SPACE},{SPACE}"), "key_separator": re.compile(f"{SPACE}:{SPACE}")}


def read_schema(schema: Any) -> str:
    """The JSON of a schema for llguidance. ValueError if it says what cannot be followed."""
    read = normal(schema)
    if isinstance(read, dict):
        read[GUIDANCE] = style_of(schema)
    return json.dumps(read)


def style_of(schema: Any) -> Mapping[str, Any]:
    """The white space that a schema's ``x-guidance`` asks for. ValueError if it asks for anything else."""
    given = schema.get(GUIDANCE, {}) if isinstance(schema, dict) else {}
    if not isinstance(given, dict):
        raise ValueError(f"{GUIDANCE} must be an object")
    for key, value in given.items():
        if key == "whitespace_flexible":
            right, wanted = isinstance(value, bool), "true or false"
        elif key in SEPARATORS:
            right = isinstance(value, str) and SEPARATORS[key].fullmatch(value) is not None
            wanted = f"{'a comma' if key == 'item_separator' else 'a colon'}, with white space around it or without"
        else:
            raise ValueError(f"{GUIDANCE} can have whitespace_flexible, {' and '.join(SEPARATORS)}, not {key}")
        if not right:
            raise ValueError(f"{GUIDANCE}.{key} must be {wanted}")
    return {**(FLEXIBLE if given.get("whitespace_flexible") else JSON_STYLE), **given}


def normal(schema: Any, top: bool = True) -> Any:
    """A schema without what llguidance cannot read and need not: formats that it does not know are annotations, 8.0
    counts 8, and bounds beyond 2^53 are drawn in to the next float64, which it makes the same integer.

    ValueError for ``x-guidance`` below the top, which it would ignore, for bounds that leave nothing, and for
    constants that it would read as others."""
    if isinstance(schema, list):
        return [normal(one, False) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        name, way = BOUNDS.get(key, (key, 0))
        if key == GUIDANCE:
            if not top:
                raise ValueError(f"{GUIDANCE} can stand at the top of a schema only")
        elif key in VALUES:
            if key in ("const", "enum"):
                _refuse_large(value)
            made[key] = value
        elif key in NAMED and isinstance(value, dict):
            read = _exact if key == "patternProperties" else str
            made[key] = {read(called): normal(one, False) for called, one in value.items()}
        elif key == "pattern" and isinstance(value, str):
            made[key] = _exact(value)
        elif way and _is_number(value) and abs(value) > EXACT:
            _bind(made, name, way, _drawn_in(value, way, outside=key != name))
        elif way and name == key and name in made:
            _bind(made, name, way, value)
        elif key in COUNTS and _is_number(value) and int(value) == value:
            if value < MOST_COUNTED or key.startswith("min"):
                made[key] = int(value)
        elif key != "format" or not isinstance(value, str) or value in FORMATS:
            made[key] = normal(value, False)
    return _spelt_once(made)


def _refuse_large(value: Any) -> None:
    """ValueError for an integer in a constant that is no float64."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _refuse_large(one)
    elif isinstance(value, int) and abs(value) > EXACT:
        raise ValueError(f"the constant {value} is beyond 2^53, where not every integer can be told; make it a string")


def _exact(pattern: str) -> str:
    """A regular expression whose classes lack U+0000: one that has all control characters llguidance reads as if it had
    the quote and the backslash too, so that ``[^"]`` would allow a quote."""
    made, at = "", 0
    for found in _CLASS.finditer(pattern):
        if found.start() < at or (found[0][:2] not in CLASSES and found[0] != "["):
            continue  # inside the last class, or another escape
        end = found.end() if found[0] != "[" else _behind_class(pattern, found.start())
        made += f"{pattern[at : found.start()]}[{pattern[found.start() : end]}--\\x00]"
        at = end
    return made + pattern[at:]


def _behind_class(pattern: str, at: int) -> int:
    """The position behind the class that begins at ``at``, with the classes inside it."""
    depth = 0
    for found in _IN_CLASS.finditer(pattern, at):
        depth += {"[": 1, "]": -1}.get(found[0][0], 0)
        if not depth:
            return found.end()
    return len(pattern)  # none: llguidance says what is wrong


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.inf not in (value, -value)


def _bind(schema: dict[str, Any], name: str, way: int, bound: Any) -> None:
    """Add an inclusive bound, where another one may have become inclusive before."""
    schema[name] = (max if way > 0 else min)(bound, schema.get(name, bound))


def _drawn_in(bound: float, way: int, outside: bool) -> int:
    """The next integer in that direction that is a float64 and has 64 bits; ``outside``: the bound itself is not
    allowed. ValueError if there is none."""
    inside = int(bound) + way * outside
    double = float(min(max(inside, -LARGEST), LARGEST))
    if (int(double) - inside) * way < 0:
        double = math.nextafter(double, way * math.inf)
    drawn = min(max(int(double), -LARGEST), LARGEST)
    if (drawn - inside) * way < 0:
        raise ValueError(f"the bound {bound} leaves no integer of 64 bits")
    return drawn


# --- one spelling of each key ---------------------------------------------------------------------------------------


def _spelt_once(made: dict[str, Any]) -> dict[str, Any]:
    """A schema with each key of its objects in one spelling; the schemas in it are so already.

    llguidance allows any escapes in keys that ``properties`` does not name, "\\u0061" beside "a" too, and takes those
    for other keys. What matches ``patternProperties`` it allows in one spelling only: so other keys match a pattern.
    ValueError for keys that no pattern of its regular expressions can tell from those of a caller's pattern."""
    named, others = made.get("properties") or {}, made.get("additionalProperties", True)
    patterns = made.get("patternProperties") or {}
    if not isinstance(named, dict) or not isinstance(patterns, dict) or not (named or patterns) or others is False:
        return made
    if any(map(_EVERYTHING.fullmatch, patterns)):
        made["additionalProperties"] = False  # no other key is left
        return made
    # its own keys follow a pattern that matches them as well, and escapes of control characters are spelt two ways
    open_ = not patterns and others in (True, {}) and all(map(str.isprintable, named))
    made["patternProperties"] = {**patterns, "" if open_ else _all_but(named, map(_beginning, patterns)): others}
    made["additionalProperties"] = False
    return made


_EVERYTHING = re.compile(r"\^?(?:\.\*)?\$?")
_BEGINNING = re.compile(r"\^((?:[\w \-/@:]|\\[.\-$/@])+)(?:\.\*\$?)?")


def _beginning(pattern: str) -> str:
    """The text with which the keys of a pattern begin, all of them. ValueError if it says anything else of them."""
    found = _BEGINNING.fullmatch(pattern)
    if found is None:
        raise ValueError(
            f"additionalProperties must be false beside the pattern {pattern!r}: which keys do not match can be told "
            "of a pattern such as ^x- only"
        )
    return found[1].replace("\\", "")


def _all_but(names: Iterable[str], beginnings: Iterable[str] = ()) -> str:
    """A regular expression of all texts but these and those that begin with one of ``beginnings``. It has no
    look-around and no control characters: llguidance reads a class that has those but no quote as if it had one."""
    closed = set(beginnings)
    names = [name for name in names if not any(map(name.startswith, closed))]
    follows: dict[str, set[str]] = {"": set()}  # letters behind each beginning of a name
    for name in (*names, *closed):
        for at, letter in enumerate(name):
            follows.setdefault(name[:at], set()).add(letter)
            follows.setdefault(name[: at + 1], set())
    ways = []
    for beginning, letters in follows.items():
        if any(map(beginning.startswith, closed)):
            continue
        before = "".join(map(_escaped, beginning))
        ways.append(f"{before}{_class_without(letters)}{_class_without(())}*")
        if beginning not in names:
            ways.append(before)
    return f"^(?:{'|'.join(ways)})$"


def _class_without(letters: Iterable[str]) -> str:
    """A class of all printable characters but these."""
    first, ranges = 0x20, ""
    for last in (*sorted({*map(ord, letters), 0x7F}), sys.maxunicode + 1):
        if first < last:
            ranges += rf"\x{{{first:x}}}-\x{{{last - 1:x}}}"
        first = max(first, last + 1)
    return f"[{ranges}]"


def _escaped(letter: str) -> str:
    return letter if letter.isalnum() and letter.isascii() else f"\\x{{{ord(letter):x}}}"


# --- schemas in a grammar -------------------------------------------------------------------------------------------

# a string, a comment or a regular expression of Lark's, or the beginning of a schema
_LARK = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/(?:[^/\\\n]|\\.)+/|%json\s+(?=[{\[])')


def read_grammar(lark: str) -> str:
    """A Lark grammar with every schema that it names by ``%json`` as llguidance should read it."""
    parts: list[str] = []
    at = 0
    while (found := _LARK.search(lark, at)) is not None:
        parts.append(lark[at : found.end()])
        at = found.end()
        if not found[0].startswith("%json"):
            continue
        try:
            schema, at = json.JSONDecoder().raw_decode(lark, at)
        except ValueError:
            continue  # llguidance will say what is wrong with it
        parts[-1] = parts[-1].removesuffix(found[0])
        parts.append(f"%json {read_schema(schema)}")
    return "".join([*parts, lark[at:]])
