"""The rows of the tables: which methods there are, and how each is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from protocols.errors import ConfigError
from protocols.limits import MAX_DRAFT_LENGTH
from protocols.messages import Method

VANILLA = "vanilla"
DYNAMIC = "duodecoding"
LOCKSTEP = "duodecoding-lockstep"


@dataclass(frozen=True, slots=True)
class Row:
    """A ``method`` of the verifier, or a ``mode`` of ``transformers``' generate: exactly one is set."""

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
    Row(LOCKSTEP, "DuoDecoding, lock-step", Method.DUODECODING_LOCKSTEP),
    Row(DYNAMIC, "DuoDecoding", Method.DUODECODING),
    Row("tree", "tree (ours)", Method.TREE),
    Row("auto", "auto (ours)", Method.AUTO),
    Row("transformers", "transformers", mode="plain"),
    Row("transformers-assisted", "transformers assisted", mode="assisted"),
    Row("transformers-prompt-lookup", "transformers prompt lookup", mode="prompt_lookup"),
)
BY_NAME = {row.name: row for row in ROWS}


def choose(names: str) -> list[Row]:
    """The rows of a comma list, or of ``all``, in the tables' order; vanilla is always among them.

    ``NAME@GAMMA`` is a method with a fixed γ. Raises ConfigError with the known names.
    """
    asked = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not asked or asked == ["all"]:
        return list(ROWS)
    order = list(BY_NAME)
    rows = [row_named(name) for name in dict.fromkeys([VANILLA, *asked])]
    return sorted(rows, key=lambda row: (order.index(row.name.partition("@")[0]), row.gamma))


def row_named(name: str) -> Row:
    """The row with that name. Raises ConfigError with the known names."""
    base, at, gamma = name.partition("@")
    row = BY_NAME.get(base)
    if row is None:
        raise ConfigError(f"method {name!r} is not known; choose all or some of {', '.join(BY_NAME)}")
    if not at:
        return row
    if not row.ours or not gamma.isdecimal() or not 1 <= int(gamma) <= MAX_DRAFT_LENGTH:
        raise ConfigError(f"method {name!r}: write NAME@GAMMA, such as duodecoding@6, with 1 to {MAX_DRAFT_LENGTH}")
    return replace(row, name=f"{base}@{int(gamma)}", label=f"{row.label}, γ = {int(gamma)}", gamma=int(gamma))


def rotated(rows: Sequence[Row], by: int) -> list[Row]:
    """The same rows from another one on, so that none is always first or after the same other."""
    start = by % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]]
