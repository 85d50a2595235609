"""The rows of the tables: which methods there are, and how each is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocols.errors import ConfigError
from protocols.messages import Method

VANILLA = "vanilla"
DYNAMIC = "duodecoding"


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
    Row("duodecoding-lockstep", "DuoDecoding, lock-step", Method.DUODECODING_LOCKSTEP),
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


def label(name: str) -> str:
    """What the tables call a row, those of the sweep included."""
    row = BY_NAME.get(name)
    if row is not None:
        return row.label
    base, _, gamma = name.partition("@")
    return f"{BY_NAME[base].label}, γ = {gamma}" if base in BY_NAME and gamma else name


def rotated(rows: Sequence[Row], by: int) -> list[Row]:
    """The same rows, beginning with another one: none is always first, on a cold cache, or behind the same other."""
    start = by % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]]
