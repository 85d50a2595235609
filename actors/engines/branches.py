"""What the rows of a window's branches look at, so that each finds its context in the order of the text.

A row's attention adds up slots in order and block by block, so its bits are those of plain decoding only if every token
that it sees is where it would be without the window. The nodes of a window lie behind the committed text in the order
in which they are listed; that is the order of the text for the first path alone. For every other branch the slots from
the last full block of common text on are copied, layer by layer, into blocks of their own, as if nothing else were
there.
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
    """What a segment's rows look at: its slots ``base .. base + span``, and behind them copies of some.

    ``visible``: ``(rows, span + copies.size)``. ``copies``: absolute slots ``(branches, size)``, which stand for the
    text from block number ``first`` on. ``branch``: of every row whose copies it looks at; -1: none.
    """

    visible: NDArray[np.bool_]
    copies: Slots = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    first: int = 0
    branch: Slots | None = None


def view(segment: Segment, step: int = BLOCK) -> View:
    """``step``: a branch's copies are a multiple of that; what they hold beyond its own tokens is not visible."""
    visible = segment.visible
    span = visible.shape[1]
    counts = visible.sum(1)
    last = span - 1 - visible[:, ::-1].argmax(1)  # of the slots that a row sees: its own, in a window
    beside = np.flatnonzero(last >= counts)
    if segment.padding or not len(beside):
        return View(visible)
    first = int(visible[beside].argmin(1).min()) // BLOCK
    start = first * BLOCK
    size = -(-(int(counts[beside].max()) - start) // step) * step
    copies: list[Slots] = []
    by_slot: dict[int, int] = {}  # the branch on which it stands behind its ancestors
    branch = np.full(len(visible), -1)
    for row in beside[::-1]:  # the deepest node of a branch comes last, and its ancestors find what they see there too
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
