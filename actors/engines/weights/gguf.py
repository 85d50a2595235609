"""GGUF files: their metadata and their tensors, as they lie in the mapped file.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian, in one file or split
into parts ``NAME-00001-of-0000N.gguf``.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from actors.engines.weights.formats import KINDS, PANEL, BlockKind, Bytes, Codes, in_float16, kind_name
from protocols.errors import ModelError

MAGIC, VERSIONS = b"GGUF", (2, 3)
PART = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
# What files hold that are no models, by their type or architecture, and what to do
NO_MODELS = {
    "adapter": ("a LoRA adapter", "merge it into its model with llama-export-lora and give that file"),
    "mmproj": ("the part of a model that sees or hears", "give the file of the model"),
    "clip": ("the part of a model that sees or hears", "give the file of the model"),
    "imatrix": ("an importance matrix", "give the file of a model"),
    "controlvector": ("a control vector", "give the file of a model"),
}
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20
_Entry = tuple[str, tuple[int, ...], int, int]  # name, shape, number of its kind, and its offset after the header


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file: rows of blocks along its last dimension."""

    name: str
    shape: tuple[int, ...]  # the slowest dimension first, as torch's
    kind: BlockKind
    data: Bytes  # a view of the mapped file, flat

    @property
    def rows(self) -> Bytes:
        """The bytes ``(all rows, bytes of a row)``."""
        return self.data.reshape(-1, self.kind.bytes_of(self.shape[-1] if self.shape else 1))

    def parted(self, index: int) -> Stored:
        """What lies at an index of the first dimension."""
        size = self.data.nbytes // self.shape[0]
        return Stored(self.name, self.shape[1:], self.kind, self.data[index * size : (index + 1) * size])

    @property
    def form(self) -> int:
        """See :class:`Codes`."""
        return self.kind.form

    def is_grouped(self) -> bool:
        """Whether the integer products read it: a matrix of a panel of outputs at least."""
        if self.kind.name == "MXFP4" and not in_float16(self.data.reshape(-1, self.kind.bytes)[:, 0]):
            return False
        return self.form > 0 and len(self.shape) == 2 and self.shape[0] >= PANEL

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        """Those rows."""
        return self.kind.codes(self.rows[rows])

    def values(self) -> NDArray[np.float32]:
        """Its numbers, as they were meant."""
        return self.kind.dequantise(self.rows).reshape(self.shape)


class Strings(Sequence[str]):
    """An array of strings in a mapped file. They are decoded at their first use, which a later start has not."""

    def __init__(self, view: memoryview, begin: int, count: int) -> None:
        """Raises ValueError or struct.error where the file ends before."""
        self._view, at = view, begin
        self._places = places = list[int]()
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            places.append(at)
            at += 8 + length_at(view, at)[0]
        if at > len(view):
            raise ValueError(at)
        self.end = at

    @cached_property
    def _decoded(self) -> list[str]:
        ends = [*self._places[1:], self.end]
        return [
            str(self._view[begin + 8 : end], "utf-8", "replace") for begin, end in zip(self._places, ends, strict=False)
        ]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._decoded[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)


class GGUF:
    """One model: the metadata of the first part and the tensors of all."""

    def __init__(self, path: str | Path) -> None:
        """Raises ModelError for a file that cannot be read, is cut off or has tensors of an unknown type."""
        self.path = Path(path)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, Stored] = {}
        self.asked = set[str]()  # keys of the architecture that were read
        self._maps: list[mmap.mmap] = []
        for number, path_of_part in enumerate(parts := parts_of(self.path)):
            part = _Part(path_of_part)
            self._maps.append(part.map)
            metadata, tensors = part.read()
            no, count = metadata.get("split.no"), metadata.get("split.count")
            if isinstance(no, int) and isinstance(count, int) and count and (no, count) != (number, len(parts)):
                raise ModelError(
                    f"{path_of_part} is part {no + 1} of {count} by what it says, and not by its name; name all "
                    "parts NAME-00001-of-0000N.gguf, in their order"
                )
            if twice := sorted(self.tensors.keys() & tensors.keys()):
                raise ModelError(f"{twice[0]} is in {path_of_part} and in another part; download the whole model")
            if number == 0:
                self.metadata = metadata
            self.tensors |= tensors
        for kind in (self.metadata.get("general.type"), self.architecture):
            if isinstance(kind, str) and kind in NO_MODELS:
                what, instead = NO_MODELS[kind]
                raise ModelError(f"{self.path} holds {what} and no model; {instead}")
        if not self.tensors:
            raise ModelError(f"{self.path} holds a vocabulary and no weights; give the file of a whole model")

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def of_architecture(self, key: str, default: Any = None) -> Any:
        """The metadata ``{architecture}.key``."""
        self.asked.add(key)
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def let_go(self) -> None:
        """What an engine has packed need not be in memory twice; the file is read again where it is asked for."""
        for one in self._maps if hasattr(mmap, "MADV_DONTNEED") else ():
            one.madvise(mmap.MADV_DONTNEED)

    @property
    def bytes(self) -> int:
        return sum(stored.data.nbytes for stored in self.tensors.values())


def parts_of(path: Path) -> list[Path]:
    """All files of a model, of which ``path`` is any one. Raises ModelError if parts are missing."""
    match = PART.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise ModelError(f"{path} is one of {count} parts and {missing[0]} is not beside it; download the whole model")
    return parts


class _Part:
    """A file that is read from front to back."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        try:
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelError(f"{path} is no GGUF file: it is empty; download it again") from None
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from None
        self._bytes: Bytes = np.frombuffer(self.map, np.uint8)
        self._view = memoryview(self._bytes.data)

    def read(self) -> tuple[dict[str, Any], dict[str, Stored]]:
        if bytes(self._view[:4]) == bytes(4):
            raise ModelError(
                f"{self._path} begins with zeros: it was not written to its end; make or download it again"
            )
        if bytes(self._view[:4]) != MAGIC:
            raise ModelError(f"{self._path} is no GGUF file: it does not begin with GGUF; download it again")
        try:
            return self._read()
        except (struct.error, ValueError, TypeError, OverflowError, MemoryError, RecursionError):
            detail = f"byte {self._at} of {len(self._bytes)}"
            raise ModelError(f"{self._path} is cut off or damaged at {detail}; download it again") from None

    def _read(self) -> tuple[dict[str, Any], dict[str, Stored]]:
        self._at = len(MAGIC)
        version = self._number("<u4")
        if version not in VERSIONS:
            what = "is big endian" if version in (v << 24 for v in VERSIONS) else f"is of GGUF version {version}"
            raise ModelError(f"{self._path} {what}; convert it anew to version 3, little endian")
        tensors, entries = self._number("<u8"), self._number("<u8")
        metadata = {}
        for _ in range(entries):
            key = self._string()
            metadata[key] = self._value(self._number("<u4"))
        table = [self._entry() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise ModelError(f"general.alignment in {self._path} is {alignment}, no power of two; download it again")
        begin = -(-self._at // alignment) * alignment
        self._check_places(table)
        return metadata, {name: self._stored(name, shape, kind, begin + at) for name, shape, kind, at in table}

    def _check_places(self, table: Sequence[_Entry]) -> None:
        """No tensor is there twice, is empty or lies in another one."""
        end, before, names = 0, "", set[str]()
        for name, shape, number, at in sorted(table, key=lambda entry: entry[3]):
            if name in names or 0 in shape:
                raise ModelError(f"tensor {name} of {self._path} is there twice or is empty; download it again")
            if at < end:
                raise ModelError(f"tensor {name} of {self._path} lies within tensor {before}; download it again")
            names.add(name)
            if (kind := KINDS.get(number)) is not None:
                end, before = at + kind.bytes_of(math.prod(shape)), name

    def _entry(self) -> _Entry:
        name, dimensions = self._string(), self._number("<u4")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(dimensions)
        shape = tuple(self._number("<u8") for _ in range(dimensions))[::-1]
        return name, shape, self._number("<u4"), self._number("<u8")

    def _stored(self, name: str, shape: tuple[int, ...], number: int, at: int) -> Stored:
        kind = KINDS.get(number)
        if kind is None:
            known = ", ".join(known.name for known in KINDS.values())
            raise ModelError(
                f"tensor {name} of {self._path} is of type {kind_name(number)}, which duoactor does not read; "
                f"choose a file of {known}"
            )
        count = math.prod(shape)
        if shape and shape[-1] % kind.elements:
            raise ValueError(shape)
        size = kind.bytes_of(count)
        if at + size > len(self._bytes):
            self._at = at
            raise ValueError(size)
        return Stored(name, shape, kind, self._bytes[at : at + size])

    def _number(self, code: str) -> Any:
        number = self._numbers(np.dtype(code), 1)[0]
        return float(str(number)) if number.dtype == np.float32 else number.item()  # 1e-06, as it was written

    def _numbers(self, kind: np.dtype[Any], count: int) -> NDArray[Any]:
        begin, self._at = self._at, self._at + kind.itemsize * count
        if self._at > len(self._bytes):
            raise ValueError(count)
        return np.frombuffer(self._view, kind, count, begin)

    def _string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._view, self._at)
        begin = self._at + 8
        if begin + length > len(self._bytes):
            raise ValueError(length)
        self._at = begin + length
        return str(self._view[begin : self._at], "utf-8", "replace")

    def _strings(self, count: int) -> Strings:
        """As :meth:`_string`, for vocabularies of hundreds of thousands."""
        found = Strings(self._view, self._at, count)
        self._at = found.end
        return found

    def _value(self, code: int) -> Any:
        if code == _STRING:
            return self._string()
        if code == _ARRAY:
            inner, count = self._number("<u4"), self._number("<u8")
            if inner in _NUMBERS:
                return self._numbers(np.dtype(_NUMBERS[inner]), count)
            if count > len(self._bytes):
                raise ValueError(count)
            return self._strings(count) if inner == _STRING else [self._value(inner) for _ in range(count)]
        if code not in _NUMBERS:
            raise ValueError(code)
        return self._number(_NUMBERS[code])
