"""Write the table of docs/drafts.md: which heads of tests/data/heads answer as the package that wrote them.

python -m tools.heads.table
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tools.pages import DOCS, renewed

HEADS, PAGE = Path(__file__).parents[2] / "tests/data/heads", DOCS / "drafts.md"


def rows() -> Iterator[str]:
    yield "| written by | kind | heads | outcome |"
    yield "|---|---|---|---|"
    for file in sorted(HEADS.glob("*.json")):
        told, found = json.loads(file.read_text()), dict[tuple[str, str], list[str]]()
        for name, answers in told["heads"].items():
            config = json.loads((HEADS / name / "config.json").read_text())
            kind = config.get("speculators_model_type") or config["architectures"][0]
            outcome = "equal" if answers else "refused"
            found.setdefault((kind, outcome), []).append(name.removeprefix(f"{file.stem}-"))
        for (kind, outcome), names in sorted(found.items()):
            yield f"| {file.stem} {told[file.stem]} | `{kind}` | {', '.join(names)} | {outcome} |"


def page(text: str) -> str:
    """The page with its table as it is now."""
    return renewed(text, "heads", rows())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
