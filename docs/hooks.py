"""What mkdocs asks of us: the list of every error sentence, read from the code so that it cannot be out of date. Links
that leave the site, which lead somewhere in the repository only, become the names of what they link."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocols", "actors", "duoactor")
FAMILY = ("ConfigError", "ModelError", "RequestError", "RefusedError", "ConnectionLost")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if "/" not in page.file.src_uri:
        markdown = re.sub(r"\[([^]]+)\]\(\.\./[^)]*\)", r"`\1`", markdown)
        markdown = re.sub(r"\[([^]]+)\]\(experiments/[^)]*\)", r"\1", markdown)
    if page.file.src_uri != "errors.md":
        return markdown
    rows = "".join(f"| {sentence} | `{kind}` | `{where}` |\n" for sentence, kind, where in sorted(sentences()))
    return f"{markdown}\n| sentence | exception | raised in |\n|---|---|---|\n{rows}"


def sentences() -> Iterator[tuple[str, str, str]]:
    """(sentence, exception, file) of every place that raises one of the family with a sentence of its own."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FAMILY):
                    continue
                texts = [text for argument in node.args if " " in (text := _text(argument))]
                if texts:
                    yield texts[-1].replace("|", "\\|").rstrip("."), node.func.id, str(file.relative_to(ROOT))


def _text(node: ast.expr) -> str:
    """A string as the reader will see it, with … for what depends on the case."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(_text(value) if isinstance(value, ast.Constant) else "…" for value in values)
        case ast.BinOp(left=left, right=right):
            return _text(left) + _text(right)
    return ""
