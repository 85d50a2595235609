"""The document that a benchmark writes: ``results.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from actors.files import whole_file
from protocols.messages import RequestStats

SCHEMA = 4
DOCUMENT = "results.json"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to one turn, as the client saw it."""

    method: str  # name of the row
    prompt: str
    task: str
    turn: int
    repeat: int
    tokens: int = 0
    ttft_ms: float = 0.0
    total_ms: float = 0.0  # request to last token
    digest: str = ""  # digest of the token ids
    error: str = ""
    stats: RequestStats | None = None  # None: not ours


class StreamsRun(msgspec.Struct, frozen=True, kw_only=True):
    """One method with a number of streams at once; each stream sends its next request when the last has ended."""

    method: str
    streams: int
    repeat: int
    tokens_per_second: float  # rate of all streams together, while all were at work
    first_ms: tuple[float, ...]  # time to first token, of each answer
    pauses_ms: tuple[float, ...]  # between two chunks of an answer, of all answers
    digests: dict[str, str]  # prompt -> digest of its answer
    failed: int = 0


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that comparable results have in common."""

    suite: str
    suite_digest: str  # digest of the selected prompts
    prompts: int
    tasks: tuple[str, ...]
    max_tokens: int
    temperature: float
    seed: int
    datastore: str = ""


class Results(msgspec.Struct, kw_only=True):
    """The whole of ``results.json``; ``table`` follows from ``runs`` and ``loads``."""

    schema: int = SCHEMA
    command: str = ""
    settings: BenchSettings
    complete: bool = True
    repeats: int = 1
    methods: tuple[str, ...] = ()
    missing: dict[str, str] = {}  # row -> why it has no figures
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    models: dict[str, Any] = {}  # target, draft, the target's device and dtype, and their measured times
    inflated: dict[str, Any] = {}  # model -> source of its function, from config.json
    table: list[dict[str, Any]] = []
    runs: tuple[Run, ...] = ()
    loads: tuple[StreamsRun, ...] = ()


def write_document(path: Path, document: Results) -> None:
    """Write the file as a whole or not at all."""
    with whole_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
