"""Messages made to hurt that can be decoded all the same: values at the edge of their limits, or near what is live."""

from __future__ import annotations

import random
import types
import typing
from typing import Any

import msgspec

from protocols import messages

RIDS = ("", "r0", "r1", "r2", "x" * 128)
NAMES = ("", "d1", "liar", "auto", "sps", "vanilla", "x" * 128)
STRUCTURES = {  # by the form of StructuredOutputs
    "json_schema": ("{}", '{"type": "object"}', '{"enum": [1, "a"]}', '{"$ref": "#"}', "[" * 200),
    "regex": ("[a-z]{2,9}", "(a?){20}a{20}", "(a|b)*c", "(?i)[^a]", "("),
    "grammar": ('start: "ab" /[c-f]+/', "root ::= [a-c]+ root", "start: start", 'start: /[^a]/ "b"'),
}
NEAR = (0, 1, 2, 3, 4, 5, 8, 40, 63, 64, 65)


class Extremes:
    """Random values of a message's types. ``long``: elements of the longest arrays."""

    def __init__(self, seed: int, long: int = 12) -> None:
        self.random = random.Random(seed)
        self.long = long
        self.fresh = 0.0  # share of strings that nobody has said before
        self._hints: dict[type, dict[str, Any]] = {}

    def message(self, kinds: typing.Sequence[type]) -> Any:
        return self.value(self.random.choice(kinds), "")

    def value(self, kind: Any, name: str) -> Any:
        limits = None
        if typing.get_origin(kind) is typing.Annotated:
            kind, limits = typing.get_args(kind)
        if kind is str:
            return self._text(name, limits)
        if kind is bytes:
            return self.random.randbytes(self._count(limits))
        if kind is int:
            return self._whole(limits)
        if kind is float:
            return self._real(limits)
        if kind is bool:
            return self.random.random() < 0.5
        if kind is types.NoneType:
            return None
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            return self.value(self.random.choice(arguments), name)
        if origin is tuple and arguments[1:] == (...,):
            return tuple(self.value(arguments[0], name) for _ in range(self._count(limits)))
        if origin is tuple:
            return tuple(self.value(one, name) for one in arguments)
        if origin is dict:
            return {self.value(arguments[0], name): self.value(arguments[1], name) for _ in range(self._count(limits))}
        if isinstance(kind, str):
            kind = vars(messages)[kind]
        if issubclass(kind, msgspec.Struct):
            return self._struct(kind)
        return self.random.choice(list(kind))

    def _struct(self, kind: type[msgspec.Struct]) -> Any:
        hints = self._hints.get(kind)
        if hints is None:
            hints = self._hints[kind] = typing.get_type_hints(kind, include_extras=True)
        made = kind(**{name: self.value(hints[name], name) for name in kind.__struct_fields__})
        if isinstance(made, messages.Grow):  # arrays of one length, or the first check drops it
            count = min(len(made.parents), len(made.tokens), len(made.logprobs))
            parents = tuple(min(parent, i - 1) for i, parent in enumerate(made.parents[:count]))
            cut = {"parents": parents, "tokens": made.tokens[:count], "logprobs": made.logprobs[:count]}
            made = msgspec.structs.replace(made, **cut)
        return made

    def _count(self, limits: msgspec.Meta | None) -> int:
        most = limits.max_length if limits is not None else self.long
        return min(most, self.random.choice((0, 1, 2, 3, self.long)))

    def _text(self, name: str, limits: msgspec.Meta | None) -> str:
        if self.fresh and self.random.random() < self.fresh:
            text = f"{self.random.getrandbits(64):x}"
        elif name in ("rid", "actor_id", "old", "new", "method"):
            text = self.random.choice(RIDS if name == "rid" else NAMES)
        elif name in STRUCTURES:
            text = self.random.choice(STRUCTURES[name])
        else:
            text = self.random.choice(("", "a", "text", "\x00\U0010ffff", "y" * 60))
        text = text[: limits.max_length] if limits is not None else text
        return text or ("d1" if limits is not None and limits.min_length else "")

    def _whole(self, limits: msgspec.Meta | None) -> int:
        low, high = (-(2**63), 2**64 - 1) if limits is None else (limits.ge, limits.le)
        pick = self.random.random()
        if pick < 0.7:
            return min(high, max(low, self.random.choice(NEAR)))
        return low if pick < 0.8 else high if pick < 0.9 else self.random.randint(low, high)

    def _real(self, limits: msgspec.Meta | None) -> float:
        low, high = (-1e300, 1e300) if limits is None else (limits.ge, limits.le)
        low = 5e-324 if low is None else low  # above 0
        pick = self.random.random()
        if pick < 0.3:
            return min(high, max(low, self.random.choice((0.0, -0.5, 0.5, 1.0, 100.0))))
        return low if pick < 0.55 else high if pick < 0.8 else self.random.uniform(low, high)
