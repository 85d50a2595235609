"""What a benchmark leaves behind: one line per run as it goes, and one document at the end."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from protocols.errors import ConfigError

SCHEMA = 2
LINES = "results.jsonl"
DOCUMENT = "results.json"


class Round(msgspec.Struct, frozen=True, array_like=True):
    """One verification round, times in microseconds; ``…_us`` that begin something count from the verifier's start."""

    started_us: float  # of the forward
    forward_us: float
    waited_from_us: float  # where wait_us is not 0
    wait_us: float
    wall_us: float  # end of the previous round to end of this one
    window: int
    accepted: int
    committed: int
    sequences: int
    gamma: int
    draft_forwards: tuple[tuple[int, int], ...]  # told of since the previous round: start and length of each

    @property
    def ended_us(self) -> float:
        return self.started_us + self.forward_us


class Cost(msgspec.Struct, frozen=True):
    """What one answer cost; sums over its rounds."""

    rounds: int = 0
    drafted: int = 0  # draft tokens that were verified
    accepted: int = 0
    gamma: float = 0.0  # mean over rounds
    forward_ms: float = 0.0
    wait_ms: float = 0.0
    overhead_ms: float = 0.0
    decode_ms: float = 0.0
    sequences: tuple[int, ...] = ()  # [k] = drafting phases with k sequences
    # what follows is from the telemetry of single rounds
    needed: tuple[tuple[int, int, int], ...] = ()  # (predicted k, needed k, phases); needed 0: more than candidates
    heard: int = 0  # rounds that telemetry told of
    verifying_drafts: int = 0  # of those, rounds whose window held draft tokens
    watched: int = 0  # all but the last: what the drafter did in that one nobody is told
    at_work: int = 0  # of the watched, rounds in which the drafter made a forward
    drafting: int = 0  # of the watched, rounds in which it did, or whose window held drafts: it may be ahead
    draft_ms: float = 0.0  # the drafter's forwards, measured by the drafter
    overlap_ms: float = 0.0  # of that, while the target verified


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to one turn, as the client saw it."""

    method: str  # row name
    prompt: str
    task: str
    turn: int
    repeat: int
    tokens: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0  # request to last token
    digest: str = ""  # of the token ids
    error: str = ""
    cost: Cost | None = None  # None: not ours
    rounds: tuple[Round, ...] = ()  # kept for a few runs only

    @property
    def decode_ms(self) -> float:
        """First token to last."""
        return self.total_ms - self.ttft_ms


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same for runs to be comparable."""

    target: str
    draft: str
    suite: str
    suite_digest: str  # of the selected prompts
    prompts: int
    tasks: tuple[str, ...]
    max_tokens: int
    temperature: float
    seed: int
    device: str
    dtype: str = "auto"
    datastore: str = ""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    settings: Settings


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Figure 1: medians in microseconds by input length."""

    tokens: int
    lengths: tuple[int, ...]
    draft_us: tuple[float, ...]
    verify_us: tuple[float, ...]
    decode_us: tuple[float, ...] = ()


class Results(msgspec.Struct, kw_only=True):
    """The whole of ``results.json``; ``table`` is for readers, everything in it follows from ``runs``."""

    schema: int = SCHEMA
    command: str = ""
    settings: Settings
    complete: bool = True
    repeats: int = 1
    methods: tuple[str, ...] = ()
    missing: dict[str, str] = {}  # row -> why it has no figures
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    models: dict[str, Any] = {}
    inflated: dict[str, Any] = {}  # model -> what config.json says of where its function came from
    sweep_gamma: int = 0
    lengths: Lengths | None = None
    table: list[dict[str, Any]] = []
    runs: tuple[Run, ...] = ()


Unit = tuple[str, str, int]  # method, prompt, repeat: a whole conversation


class Store:
    """``results.jsonl`` in a directory: appended run by run, so that nothing finished is lost."""

    def __init__(self, directory: Path, settings: Settings, *, resume: bool = False) -> None:
        """ConfigError when there are results already (or, with ``resume``, results of something else)."""
        self.path = directory / LINES
        self.settings = settings
        self.runs: list[Run] = []
        directory.mkdir(parents=True, exist_ok=True)
        known = self.path.exists() and self.path.stat().st_size > 0
        if known and not resume:
            raise ConfigError(f"{self.path} holds results already: add --resume to go on, or choose another --out")
        if known:
            self.runs = _read_lines(self.path, settings)
        fresh = self.path.with_suffix(".part")
        fresh.write_bytes(b"".join([_line(Header(schema=SCHEMA, settings=settings)), *map(_line, self._units())]))
        os.replace(fresh, self.path)
        self._file: io.BufferedWriter = self.path.open("ab")

    @property
    def done(self) -> set[Unit]:
        return {(run.method, run.prompt, run.repeat) for run in self.runs}

    def add(self, runs: Sequence[Run]) -> None:
        """One unit's runs; they share a line, so that a unit is there wholly or not at all."""
        self.runs += runs
        self._file.write(_line(runs))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _units(self) -> list[list[Run]]:
        units: dict[Unit, list[Run]] = {}
        for run in self.runs:
            units.setdefault((run.method, run.prompt, run.repeat), []).append(run)
        return list(units.values())


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _read_lines(path: Path, settings: Settings) -> list[Run]:
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
    runs: list[Run] = []
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        try:
            runs += msgspec.json.decode(line, type=list[Run])
        except msgspec.DecodeError:
            if any(lines[number - 1 :]):
                raise ConfigError(f"{path} line {number} does not hold runs of duoactor bench") from None
    return runs


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)[:60] or "none"


def write_document(directory: Path, results: Results) -> Path:
    """``results.json``, replaced as a whole."""
    path = directory / DOCUMENT
    draft = path.with_suffix(".part")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    os.replace(draft, path)
    return path


def read_document(path: Path) -> Results:
    """Raises ConfigError in one sentence."""
    if path.is_dir():
        path = path / DOCUMENT
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    schema: object = None
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(data)
        schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        what = f"has schema {schema}, not {SCHEMA}" if isinstance(schema, int) else "is not a results.json"
        raise ConfigError(f"{path} {what}: it must come from `duoactor bench`")
    try:
        return msgspec.json.decode(data, type=Results)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a results.json of `duoactor bench`: {error}") from None
