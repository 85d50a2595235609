"""Tables and lanes of text that fit into a given width; the figures that matter least give way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from duoactor.monitor.spans import Span, shared

GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    cells: Sequence[str]
    right: bool = False
    widest: int = 24  # what is longer is cut
    rank: int = 0  # where there is no room for all, the highest goes first


def clean(text: str) -> str:
    """Names come from other processes: what would move the cursor is shown as ``?``."""
    return "".join(char if char.isprintable() else "?" for char in text)


def cut(text: str, width: int, ellipsis: str = "…") -> str:
    """At most ``width`` cells of it."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - len(ellipsis))) + ellipsis[:width]


def table(columns: Sequence[Column], width: int, ellipsis: str = "…") -> list[str]:
    """A line of titles and one for each row, none wider than ``width`` cells."""
    kept = list(columns)
    widths = {id(one): min(one.widest, max(cell_len(cell) for cell in (one.title, *one.cells))) for one in kept}
    while len(kept) > 1 and sum(widths[id(one)] + GAP for one in kept) - GAP > width:
        kept.remove(max(kept, key=lambda one: one.rank))
    lines = []
    for row in range(-1, len(kept[0].cells)):
        cells = []
        for one in kept:
            text = cut(one.title if row < 0 else one.cells[row], widths[id(one)], ellipsis)
            padding = " " * (widths[id(one)] - cell_len(text))
            cells.append(padding + text if one.right else text + padding)
        lines.append(cut((" " * GAP).join(cells).rstrip(), width, ellipsis))
    return lines


def lane(spans: Sequence[Span], begin: float, end: float, width: int, levels: str) -> str:
    """A character for each ``width``-th part of the time from ``begin`` to ``end``: how much of it the spans cover.

    ``spans`` are in order and do not overlap. ``levels``: from nothing to all of it.
    """
    part = (end - begin) / width
    shares = (shared([(begin + i * part, begin + (i + 1) * part)], spans) / part for i in range(width))
    top = len(levels) - 1
    return "".join(levels[0 if share < 0.02 else max(1, min(top, round(share * top)))] for share in shares)
