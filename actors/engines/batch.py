"""The flat batch of one forward, as the target puts it together: rows of several requests, each with a view of its
own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from actors.engines.engine import Segment, State

SPAN = 64  # segments end at multiples of this, so that shapes repeat

Mask = np.ndarray[tuple[int, int], np.dtype[np.bool_]]


def align(slots: int) -> int:
    return -(-slots // SPAN) * SPAN


def causal(start: int, end: int) -> Mask:
    """Rows ``start .. end`` of a text that lies in order: each sees itself and everything before it."""
    mask: Mask = np.arange(align(end))[None, :] <= np.arange(start, end)[:, None]
    return mask


@dataclass(slots=True)
class Batch:
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
        """``slots`` are absolute; ``visible`` is ``(rows, span)`` over ``base ..``."""
        self.tokens.extend(tokens)
        self.positions.extend(positions)
        self.slots.extend(slots)
        self.segments.append(Segment(len(tokens), base, visible.shape[1], visible, text, padding, state, prompt))

    def pad(self, rows: int, base: int) -> None:
        """As many rows more that nobody looks at; each sees itself alone, in one of ``SPAN`` slots from ``base`` on."""
        alone = np.arange(SPAN)[None, :] == (np.arange(rows) % SPAN)[:, None]
        slots = [base + row % SPAN for row in range(rows)]
        self.add(base, [0] * rows, [0] * rows, slots, alone, padding=True)
