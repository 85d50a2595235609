"""What a benchmark leaves behind: its runs (see ``store``), and one document at the end."""

from __future__ import annotations

import contextlib
import os
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


class AcceptedBy(msgspec.Struct, frozen=True):
    """Accepted draft tokens by who had named them, each counted once; those that a grammar forced are left out."""

    draft: int = 0  # a draft model alone
    both: int = 0  # a draft model, and retrieval as well
    text: int = 0  # retrieval alone: from the request's own text, ...
    memory: int = 0  # ... or else from requests that had ended ...
    datastore: int = 0  # ... or else from the datastore


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
    sources: AcceptedBy | None = None  # None: it was measured before verifiers told


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
    def unit(self) -> tuple[str, str, int]:
        """A whole conversation, which is kept or run again as one."""
        return (self.method, self.prompt, self.repeat)

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


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Figure 1: medians in microseconds by input length."""

    tokens: int
    lengths: tuple[int, ...]
    draft_us: tuple[float, ...]
    verify_us: tuple[float, ...]
    decode_us: tuple[float, ...] = ()


class Document(msgspec.Struct, kw_only=True):
    """What every benchmark says in its JSON file; ``table`` is for readers, everything in it follows from the rest."""

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
    table: list[dict[str, Any]] = []


class Results(Document, kw_only=True):
    """Of methods side by side: the whole of ``results.json``."""

    sweep_gamma: int = 0
    lengths: Lengths | None = None
    runs: tuple[Run, ...] = ()


def write_document(path: Path, document: Document) -> None:
    """Replaced as a whole."""
    draft = path.with_suffix(".part")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    os.replace(draft, path)


def read_results(path: Path) -> Results:
    """``results.json``, or that of a directory. Raises ConfigError in one sentence."""
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
