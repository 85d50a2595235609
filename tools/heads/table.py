"""Write the table of docs/drafts.md: which heads of tests/data/heads answer as the package that wrote them.

Run from the root of the project: ``python tools/heads/table.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

HEADS, PAGE = Path(__file__).parents[2] / "tests/data/heads", Path("docs/drafts.md")
BEGIN, END = "<!-- table of tools/heads/table.py -->", "<!-- end of the table -->"


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


if __name__ == "__main__":
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text("\n".join([before + BEGIN, "", *rows(), "", END]) + rest.partition(END)[2])
