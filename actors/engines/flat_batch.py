"""The flat batch of one forward: rows of several requests, each with a view of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

SPAN = 64  # segments end at multiples of this, so that shapes repeat

Mask = np.ndarray[tuple[int, int], np.dtype[np.bool_]]


def align(slots: int) -> int:
    return -(-slots // SPAN) * SPAN


def causal(start: int, end: int) -> Mask:
    """Rows ``start .. end`` of a text that lies in order: each sees itself and everything before it."""
    mask: Mask = np.arange(align(end))[None, :] <= np.arange(start, end)[:, None]
    return mask


class State(Protocol):
    """What recurrent layers remember of one request's text. A forward of a segment goes on from it and changes nothing
    of it until ``keep`` says how many rows were right."""

    def keep(self, row: int) -> None:
        """The text goes on behind that row of the last forward (-1: the last). Of a prompt's there is only the last."""
        ...


@dataclass(slots=True)
class Segment:
    """One request's rows, consecutive in the flat batch. They see only pool slots ``base .. base + span``.

    ``visible`` is bool ``(rows, span)``; a row that sees nothing would divide by zero, so each sees at least one slot.
    ``text``: how long the request's text may become, prompt and ``max_tokens``: some models' positions depend on it.
    ``padding``: the rows only fill the batch up, behind all others; what is computed for them is thrown away.
    ``state``: of the request, where the model has recurrent layers: the rows are one path then, and go on from it.
    ``prompt``: a piece of a prompt; alone in its forward where a model has recurrent layers.
    """

    rows: int
    base: int
    span: int
    visible: Mask
    text: int = 0
    padding: bool = False
    state: State | None = None
    prompt: bool = False


@dataclass(slots=True)
class FlatBatch:
    """The same place in ``tokens``, ``positions`` and ``slots`` is one row; ``segments`` cover all of them in order.
    Slots are absolute: of the whole pool."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    def add(
        self,
        base: int,
        tokens: Sequence[int],
        positions: list[int],
        slots: list[int],
        visible: Mask,
        text: int = 0,
        state: State | None = None,
        prompt: bool = False,
        padding: bool = False,
    ) -> None:
        """One request's rows; see :class:`Segment`."""
        self.tokens.extend(tokens)
        self.positions.extend(positions)
        self.slots.extend(slots)
        self.segments.append(Segment(len(tokens), base, visible.shape[1], visible, text, padding, state, prompt))

    def pad(self, rows: int, base: int) -> None:
        """As many rows more that nobody looks at; each sees itself alone, in one of ``SPAN`` slots from ``base`` on."""
        alone = np.arange(SPAN)[None, :] == (np.arange(rows) % SPAN)[:, None]
        slots = [base + row % SPAN for row in range(rows)]
        self.add(base, [0] * rows, [0] * rows, slots, alone, padding=True)
