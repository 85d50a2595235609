"""The flat batch of one forward: rows of several requests, each of which sees only its own request's slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

SPAN = 64  # segments end at multiples of this, so that shapes repeat
# Rows that an exact forward by torch on a CPU is filled up to a multiple of: torch computes what is left after the
# last whole vector by other code, with other bits (a softmax over four experts).
WHOLE = 16

Mask = np.ndarray[tuple[int, int], np.dtype[np.bool_]]


def align(slots: int) -> int:
    """``slots`` rounded up to a multiple of ``SPAN``."""
    return -(-slots // SPAN) * SPAN


def causal(start: int, end: int) -> Mask:
    """The mask of positions ``start .. end`` of a text in canonical slots: each sees itself and all before it."""
    mask: Mask = np.arange(align(end))[None, :] <= np.arange(start, end)[:, None]
    return mask


class TextState(Protocol):
    """A model's state of one request's text, besides the slots of the pool. A forward starts from it and leaves it as
    it is, until ``keep`` says which of the forward's rows belong to the text."""

    @property
    def back(self) -> int:
        """How many of the text's last tokens it can be without, see ``copy``."""
        ...

    def keep(self, path: Sequence[int]) -> None:
        """The text goes on after ``path``, rows of the last forward of which each is the parent of the next; all rows,
        if it was a piece of a prompt."""
        ...

    def copy(self, back: int = 0) -> TextState:
        """The state of another request with the same beginning, but for the last ``back`` tokens."""
        ...


class RecurrentState(TextState, Protocol):
    """What recurrent layers remember."""

    def record(self, row: int) -> Any:
        """What a row of the last forward, of a window, has put into the layers."""
        ...

    def extend(self, records: Sequence[Any]) -> None:
        """The text goes on after rows with those records."""
        ...

    def after(self, records: Sequence[Any]) -> RecurrentState:
        """The same for one forward's rows, without a change of this state."""
        ...


@dataclass(slots=True)
class Segment:
    """One request's rows, consecutive in the flat batch. They see only pool slots ``base .. base + span``."""

    rows: int
    base: int
    span: int
    visible: Mask  # (rows, span): the slots that each row sees; at least one, or its softmax would divide by zero
    padding: bool = False  # the rows only fill the batch up, after all others; what is computed for them is discarded
    state: TextState | None = None  # state from which the first row goes on
    prompt: bool = False  # a piece of a prompt
    parents: Sequence[int] = ()  # each row's predecessor on its path, -1 for the first; (): one path


@dataclass(slots=True)
class FlatBatch:
    """Row i is ``tokens[i]`` at ``positions[i]`` of its text, with its K/V in pool slot ``slots[i]``. ``segments``
    cover all rows in order."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def add(self, base: int, tokens: Sequence[int], positions: list[int], slots: list[int], visible: Mask) -> Segment:
        """One request's rows. What else is known of them, the caller says of their segment."""
        self.tokens.extend(tokens)
        self.positions.extend(positions)
        self.slots.extend(slots)
        self.segments.append(segment := Segment(len(tokens), base, visible.shape[1], visible))
        return segment

    def padded(self, rows: int, base: int) -> FlatBatch:
        """This batch if ``rows`` is 0, else a copy with as many rows more, see :meth:`pad`."""
        if not rows:
            return self
        copy = FlatBatch([*self.tokens], [*self.positions], [*self.slots], [*self.segments])
        copy.pad(rows, base)
        return copy

    def pad(self, rows: int, base: int) -> None:
        """As many rows more as padding; each sees itself alone, in one of ``SPAN`` slots from ``base`` on."""
        alone = np.arange(SPAN)[None, :] == (np.arange(rows) % SPAN)[:, None]
        slots = [base + row % SPAN for row in range(rows)]
        self.add(base, [0] * rows, [0] * rows, slots, alone).padding = True
