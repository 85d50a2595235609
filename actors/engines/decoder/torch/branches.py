"""What the rows of a window's branches attend to, so that each finds its context in the order of its text.

A row's attention adds up slots in order, block by block. So it has the bits of plain decoding only if its visible
tokens lie where plain decoding puts them. Nodes follow the committed text in the order of their list: for the first
path only, this is the order of the text. For each other branch, the slots from the last full block of common text on
are copied, layer by layer, into blocks of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from actors.engines.flat_batch import Segment

BLOCK = 128  # slots

Slots = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class View:
    """What a segment's rows attend to: its slots ``base .. base + span``, then copies of some slots."""

    visible: NDArray[np.bool_]  # (rows, span + branches * size)
    copies: Slots = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))  # (branches, size): absolute slots
    first: int = 0  # number of the block of text that the copies begin with
    branch: Slots | None = None  # (rows,): the branch with the copies that a row attends to; -1: none


def view(segment: Segment, step: int = BLOCK) -> View:
    """The view of a segment. The copies of each branch are a multiple of ``step`` slots; tokens of other rows are not
    visible."""
    visible = segment.visible
    span = visible.shape[1]
    counts = visible.sum(1)
    last = span - 1 - visible[:, ::-1].argmax(1)  # the last slot that each row sees: in a window, its own
    beside = np.flatnonzero(last >= counts)  # rows that do not see all slots up to their own: not on the first path
    if segment.padding or not len(beside):
        return View(visible)
    first = int(visible[beside].argmin(1).min()) // BLOCK
    start = first * BLOCK
    size = -(-(int(counts[beside].max()) - start) // step) * step
    copies: list[Slots] = []
    by_slot: dict[int, int] = {}  # branch that has a slot after its ancestors
    branch = np.full(len(visible), -1)
    for row in beside[::-1]:  # the deepest node of a branch comes last, and its ancestors can use the same copies
        path = np.flatnonzero(visible[row, start:]) + start
        known = by_slot.get(int(last[row]), -1)
        if known < 0 or not np.array_equal(copies[known][: len(path)], path):
            known = len(copies)
            by_slot |= dict.fromkeys(path.tolist(), len(copies))
            copies.append(np.concatenate([path, np.full(size - len(path), path[-1])]))
        branch[row] = known
    wide = np.zeros((len(visible), span + size * len(copies)), dtype=np.bool_)
    wide[:, :span] = visible
    for row in beside:
        wide[row, start:span] = False
        at = span + size * branch[row]
        wide[row, at : at + counts[row] - start] = True
    return View(wide, segment.base + np.stack(copies), first, branch)
