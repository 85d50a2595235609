"""The rows of the tables: which methods there are, and how each is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocols.errors import ConfigError
from protocols.messages import Method

VANILLA = "vanilla"
DYNAMIC = "duodecoding"
LOCKSTEP = "duodecoding-lockstep"
ALWAYS_DRAFT = (Method.SPS, Method.PEARL, Method.DUODECODING, Method.DUODECODING_LOCKSTEP)


@dataclass(frozen=True, slots=True)
class Row:
    """``method`` is ours, asked of the verifier; ``mode`` is one of ``transformers``' generate, asked of the
    reference. Exactly one of them is set."""

    name: str
    label: str
    method: str = ""
    mode: str = ""
    sequences: int = 0  # 0: as the method chooses
    gamma: int = 0  # 0: as the controller chooses

    @property
    def ours(self) -> bool:
        return bool(self.method)

    @property
    def always_drafts(self) -> bool:
        """Whether a row in which the drafter rests would be another method under this one's name."""
        return self.method in ALWAYS_DRAFT


ROWS = (
    Row(VANILLA, "vanilla", Method.VANILLA),
    Row("sps", "SpS", Method.SPS),
    Row("pld", "PLD", Method.PLD),
    Row("pld-earliest", "PLD (earliest match)", Method.PLD_EARLIEST),
    Row("sam", "SAM", Method.SAM),
    Row("rest", "REST", Method.REST),
    Row("lookahead", "Lookahead", Method.LOOKAHEAD),
    Row("pearl", "PEARL", Method.PEARL),
    Row("duodecoding-1", "DuoDecoding, 1 sequence", Method.DUODECODING, sequences=1),
    Row("duodecoding-2", "DuoDecoding, 2 sequences", Method.DUODECODING, sequences=2),
    Row("duodecoding-3", "DuoDecoding, 3 sequences", Method.DUODECODING, sequences=3),
    Row(LOCKSTEP, "DuoDecoding, lock-step", Method.DUODECODING_LOCKSTEP),
    Row(DYNAMIC, "DuoDecoding", Method.DUODECODING),
    Row("tree", "tree (ours)", Method.TREE),
    Row("auto", "auto (ours)", Method.AUTO),
    Row("transformers", "transformers", mode="plain"),
    Row("transformers-assisted", "transformers assisted", mode="assisted"),
    Row("transformers-prompt-lookup", "transformers prompt lookup", mode="prompt_lookup"),
)
BY_NAME = {row.name: row for row in ROWS}
STATIC = ("duodecoding-1", "duodecoding-2", "duodecoding-3")


def choose(names: str) -> list[Row]:
    """``all`` or a comma list of row names, in the tables' order; vanilla is always among them.

    Raises ConfigError naming the known ones.
    """
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if not asked or asked == ["all"]:
        return list(ROWS)
    for name in asked:
        if name not in BY_NAME:
            raise ConfigError(f"method {name!r} is not known; choose all or some of {', '.join(BY_NAME)}")
    return [row for row in ROWS if row.name in asked or row.name == VANILLA]


def sweep(gamma: int) -> list[Row]:
    """DuoDecoding with gamma from two below the chosen one to two above it."""
    return [
        Row(f"{DYNAMIC}@{one}", f"DuoDecoding, γ = {one}", Method.DUODECODING, gamma=one)
        for one in range(max(1, gamma - 2), gamma + 3)
    ]


def row_named(name: str) -> Row | None:
    """The row of that name, those of the sweep included."""
    base, _, gamma = name.partition("@")
    if not gamma.isdecimal():
        return BY_NAME.get(name)
    return next((row for row in sweep(int(gamma)) if row.name == name), None) if base == DYNAMIC else None


def label(name: str) -> str:
    """What the tables call a row."""
    row = row_named(name)
    return row.label if row is not None else name


def rotated(rows: Sequence[Row], by: int) -> list[Row]:
    """The same rows, beginning with another one: none is always first, on a cold cache, or behind the same other."""
    start = by % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]]
