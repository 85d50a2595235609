"""What mkdocs asks of us: pages that exist on the site alone, made from the code so that they cannot be out of date.
Links that leave the site, which lead somewhere in the repository only, become the names of what they link."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocols", "actors", "duoactor")
FAMILY = ("ConfigError", "ModelError", "RequestError", "RefusedError", "ConnectionLost")


ERRORS = """# Every error sentence

Errors are one family: every exception is a `duoactor.DuoactorError`, and its message is one sentence that says what is
wrong and what to do. The command line prints it behind `duoactor:` and exits with 1; the gateway sends it as an error
in OpenAI's shape; `--debug` shows where it was raised. What can be said, read from the code (… stands for names and
numbers):
"""


def on_files(files: Any, config: Any, **_: Any) -> Any:
    for name, content in (("errors.md", errors()), ("protocol.md", (ROOT / "protocols" / "SPEC.md").read_text())):
        files.append(File.generated(config, name, content=content))
    return files


def errors() -> str:
    rows = "".join(f"| {sentence} | `{kind}` | `{where}` |\n" for sentence, kind, where in sorted(sentences()))
    return f"{ERRORS}\n| sentence | exception | raised in |\n|---|---|---|\n{rows}"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri == "api.md":
        markdown = re.sub(r"^- `(duoactor\.\w+)`$", r"::: \1", markdown, flags=re.M)
    if "/" not in page.file.src_uri:
        markdown = markdown.replace("](../protocols/SPEC.md", "](protocol.md")
        markdown = re.sub(r"\[([^]]+)\]\(\.\./[^)]*\)", r"`\1`", markdown)
        markdown = re.sub(r"\[([^]]+)\]\(experiments/[^)]*\)", r"\1", markdown)
    return markdown


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
