"""What a benchmark under load leaves behind: cells (one method, one load, one repeat), and one document."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from duoactor.bench.results import Settings
from protocols.errors import ConfigError

LINES = "load.jsonl"
DOCUMENT = "load.json"
SCHEMA = 1
LONG = "long"  # what the prompts of LONG_TOKENS are called
LONG_TOKENS = 1536


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, as its client saw it. Times in ms from the cell's begin."""

    prompt: str
    sent: float
    times: tuple[float, ...] = ()  # of the chunks that had tokens
    tokens: tuple[int, ...] = ()  # of each of them
    digest: str = ""
    error: str = ""
    rounds: int = 0
    drafted: int = 0  # draft tokens that were verified
    accepted: int = 0
    forward_ms: float = 0.0  # sum over its rounds
    wait_ms: float = 0.0

    @property
    def first(self) -> float:
        return self.times[0] if self.times else self.sent

    @property
    def ended(self) -> float:
        return self.times[-1] if self.times else self.sent

    @property
    def count(self) -> int:
        return sum(self.tokens)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """``streams``: how many are at work at once where a stream asks again when it was answered (``closed``). Elsewhere
    requests come by themselves, ``rate`` of them a second: as many as vanilla answers with so many streams."""

    method: str
    arrivals: str
    streams: int
    repeat: int
    rate: float = 0.0
    answers: tuple[Told, ...] = ()

    @property
    def unit(self) -> tuple[str, int, str, int]:
        return (self.arrivals, self.streams, self.method, self.repeat)


class LoadResults(msgspec.Struct, kw_only=True):
    """The whole of ``load.json``; ``table`` is for readers, everything in it follows from ``cells``."""

    schema: int = SCHEMA
    command: str = ""
    settings: Settings
    complete: bool = True
    repeats: int = 1
    methods: tuple[str, ...] = ()
    missing: dict[str, str] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    models: dict[str, Any] = {}
    inflated: dict[str, Any] = {}
    table: list[dict[str, Any]] = []
    cells: tuple[Cell, ...] = ()


def write_load(directory: Path, results: LoadResults) -> None:
    path = directory / DOCUMENT
    draft = path.with_suffix(".part")
    draft.write_bytes(msgspec.json.encode(results) + b"\n")
    os.replace(draft, path)


def read_load(directory: Path) -> LoadResults:
    """Raises ConfigError in one sentence."""
    path = directory / DOCUMENT
    try:
        found = msgspec.json.decode(path.read_bytes(), type=LoadResults)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path}, which `duoactor bench --streams` writes: {error}") from None
    if found.schema != SCHEMA:
        raise ConfigError(f"{path} has schema {found.schema}, not {SCHEMA}: measure it anew")
    return found
