"""Parts of pages of the documentation that scripts write: what stands between two marks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def renewed(text: str, part: str, lines: Iterable[str]) -> str:
    """The page with other lines in that part. ValueError if it has no such part."""
    begin, end = (f"<!-- {part} {what} -->" for what in ("begins", "ends"))
    before, rest = text.split(begin)
    _, behind = rest.split(end)
    return before + "\n".join([begin, "", *lines, "", end]) + behind
