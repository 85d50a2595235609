"""What a benchmark has finished, one line per unit as it goes, so that an interruption loses nothing of it."""

from __future__ import annotations

import io
import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from duoactor.bench.results import SCHEMA, Settings
from protocols.errors import ConfigError


class Record(Protocol):
    """Something measured. Records of one ``unit`` are kept, or measured again, together."""

    @property
    def unit(self) -> Hashable: ...


R = TypeVar("R", bound=Record)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    settings: Settings


class Store(Generic[R]):
    """A file of JSON lines, appended to unit by unit."""

    def __init__(self, path: Path, settings: Settings, kind: type[R], *, resume: bool = False) -> None:
        """ConfigError when there are results already (or, with ``resume``, results of something else)."""
        self.path = path
        self.settings = settings
        self.runs: list[R] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        known = self.path.exists() and self.path.stat().st_size > 0
        if known and not resume:
            raise ConfigError(f"{self.path} holds results already: add --resume to go on, or choose another --out")
        if known:
            self.runs = _read_lines(self.path, settings, kind)
        fresh = self.path.with_suffix(".part")
        fresh.write_bytes(b"".join([_line(Header(schema=SCHEMA, settings=settings)), *map(_line, self._units())]))
        os.replace(fresh, self.path)
        self._file: io.BufferedWriter = self.path.open("ab")

    @property
    def done(self) -> set[Hashable]:
        return {run.unit for run in self.runs}

    def add(self, runs: Sequence[R]) -> None:
        """One unit's runs; they share a line, so that a unit is there wholly or not at all."""
        self.runs += runs
        self._file.write(_line(runs))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _units(self) -> list[list[R]]:
        units: dict[Hashable, list[R]] = {}
        for run in self.runs:
            units.setdefault(run.unit, []).append(run)
        return list(units.values())


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _read_lines(path: Path, settings: Settings, kind: type[R]) -> list[R]:
    """The earlier runs. A line that a crash cut off at the end is dropped."""
    first, *lines = path.read_bytes().split(b"\n")
    try:
        header = msgspec.json.decode(first, type=Header)
    except msgspec.DecodeError:
        raise ConfigError(f"{path} was not written by this version of duoactor bench; choose another --out") from None
    if header.schema != SCHEMA:
        raise ConfigError(f"{path} has schema {header.schema}, this version writes {SCHEMA}; choose another --out")
    for name in Settings.__struct_fields__:
        was, now = getattr(header.settings, name), getattr(settings, name)
        if was != now:
            raise ConfigError(
                f"{path} was measured with {name} {_short(was)}, not {_short(now)}: resume with the same options, "
                "or choose another --out"
            )
    decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    runs: list[R] = []
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        try:
            runs += decoder.decode(line)
        except msgspec.DecodeError:
            if any(lines[number - 1 :]):
                raise ConfigError(f"{path} line {number} does not hold runs of duoactor bench") from None
    return runs


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)[:60] or "none"
