"""GGUF files of many families, and changes of a field: a count, a length, a type, a shape, an offset, a value."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from pathlib import Path

from tests.engines.weights.test_gguf_serving import mixed
from tests.fuzz.model_files import Corpus

FAMILIES = (
    *("llama", "qwen3", "gemma3", "Gemma4", "Gemma_4_with_experts", "Ministral3", "Exaone4", "Starcoder2", "MiniMaxM2"),
    *("Dots1", "Mixtral", "GptOss", "glm4moe", "Llama4", "DeepseekV3", "qwen35", "Lfm2", "Bamba"),
)
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of numbers, by their type
_FLOATS = {6: "<f", 12: "<d"}
_STRING, _ARRAY = 8, 9
_EDGES = [(1 << bits) + more for bits in (31, 32, 63, 64) for more in (-1, 0)]
_ODD = (0, 1, 2, 3, 5, 7, 16, 31, 32, 33, 64, 255, 1 << 15, *_EDGES)
_ODD_FLOATS = (0.0, -1.0, 1e-300, 1e30, 3.4e38, float("nan"), float("inf"), float("-inf"))
_NO_NUMBERS = (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\x7f\xff\x7f", b"\0\xfc\0\xfc")
_KEYS = ("block_count", "expert_used_count", "expert_count", "attention.key_length", "rope.dimension_count")


@dataclass(frozen=True, slots=True)
class Field:
    """Bytes of a file that mean something. ``kind``: "int", "float" or "text"."""

    name: str
    at: int
    size: int
    kind: str = "int"


def fields_of(data: bytes) -> tuple[list[Field], int]:
    """All fields before the tensors' bytes, and where those begin."""
    return _Fields(data).read()


class _Fields:
    def __init__(self, data: bytes) -> None:
        self._data, self._at, self.found = data, 4, list[Field]()

    def read(self) -> tuple[list[Field], int]:
        self._number("version", 4)
        tensors, entries = self._number("count of tensors", 8), self._number("count of entries", 8)
        for _ in range(entries):
            key = self._text("a key")
            self._value(key, self._number(f"type of {key}", 4))
        for _ in range(tensors):
            name = self._text("a tensor's name")
            for place in range(self._number(f"dimensions of {name}", 4)):
                self._number(f"dimension {place} of {name}", 8)
            self._number(f"kind of {name}", 4), self._number(f"offset of {name}", 8)
        return self.found, -(-self._at // 32) * 32

    def _number(self, name: str, size: int, kind: str = "int") -> int:
        self.found.append(Field(name, self._at, size, kind))
        self._at += size
        return int.from_bytes(self._data[self._at - size : self._at], "little")

    def _text(self, name: str) -> str:
        size = self._number(f"length of {name}", 8)
        self.found.append(Field(name, self._at, size, "text"))
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def _value(self, name: str, kind: int) -> None:
        if kind == _STRING:
            self._text(name)
        elif kind == _ARRAY:
            inner, count = self._number(f"type of items of {name}", 4), self._number(f"count of {name}", 8)
            for _ in range(count):
                self._value(f"item of {name}", inner)
        else:
            self._number(name, _SIZES[kind], "float" if kind in _FLOATS else "int")


def change(path: Path, chance: random.Random) -> list[str]:
    """One to three changes; items of long lists are chosen as often as one field."""
    data = bytearray(path.read_bytes())
    fields, begin = fields_of(bytes(data))
    told = [_changed(data, fields, begin, chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    path.write_bytes(data)
    return told


def _changed(data: bytearray, fields: list[Field], begin: int, chance: random.Random) -> str:
    match chance.randrange(20):
        case 0:
            end = chance.randrange(len(data))
            del data[end:]
            return f"cut off at {end}"
        case 1:
            at = chance.randrange(len(data))
            data[at] ^= 1 << chance.randrange(8)
            return f"a bit of byte {at}"
        case 2 | 3 if len(data) > begin:  # numbers of weights, which may be any
            for _ in range(chance.choice((1, 8, 200))):
                at = chance.randrange(begin, len(data))
                data[at : at + 4] = chance.choice(_NO_NUMBERS)
            return "weights that are no numbers"
        case 4:
            return _exchanged(data, fields, chance)
    names = sorted({field.name for field in fields})
    urgent = [name for name in names if name.endswith(_KEYS)]
    name = chance.choice(urgent if urgent and chance.random() < 0.15 else names)
    field = chance.choice([field for field in fields if field.name == name])
    if field.at + field.size > len(data):
        return "nothing"
    new = _other(bytes(data[field.at : field.at + field.size]), field, chance)
    data[field.at : field.at + field.size] = new
    return f"{name} is {new[:16]!r}"


def _exchanged(data: bytearray, fields: list[Field], chance: random.Random) -> str:
    """Two numbers of the same size take each other's place: shapes, offsets and counts that are right elsewhere."""
    numbers = [field for field in fields if field.size == chance.choice((4, 8)) and field.kind == "int"]
    one, other = chance.choice(numbers), chance.choice(numbers)
    if one.size != other.size or max(one.at, other.at) + one.size > len(data):
        return "nothing"
    first, second = bytes(data[one.at : one.at + one.size]), bytes(data[other.at : other.at + one.size])
    data[one.at : one.at + one.size], data[other.at : other.at + one.size] = second, first
    return f"{one.name} and {other.name} exchanged"


def _other(old: bytes, field: Field, chance: random.Random) -> bytes:
    if field.kind == "text":
        at = chance.randrange(len(old) + 1)
        return (old[:at] + chance.randbytes(1) + old[at + 1 :])[: len(old)]
    if field.kind == "float":
        code = "<f" if field.size == 4 else "<d"
        return struct.pack(code, min(chance.choice(_ODD_FLOATS), 3.4e38) if chance.random() < 0.8 else chance.random())
    known = int.from_bytes(old, "little")
    near = (known + 1, known - 1, 2 * known, known // 2, known ^ 1 << chance.randrange(8 * len(old)), known + 32)
    return (chance.choice((*_ODD, *near, *near)) % (1 << 8 * field.size)).to_bytes(field.size, "little")


def corpus(directory: Path, families: tuple[str, ...] = FAMILIES) -> Corpus:
    """A tiny file of each family, whose matrices are in blocks of several kinds."""
    seeds = {}
    for number, family in enumerate(families):
        own = directory / f"seed{number}"
        own.mkdir()
        seeds[family] = Path(mixed(family, own))
    return Corpus(seeds, change)
