"""How to add one of the package's extras, by how the package itself was installed."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit


def install(extra: str) -> str:
    """The command that adds ``extra``."""
    try:
        origin = distribution("duoactor").read_text("direct_url.json")
    except PackageNotFoundError:  # a checkout that is not installed
        return f"pip install -c constraints.txt -e '.[{extra}]' in the checkout"
    found = json.loads(origin) if origin else {}
    source = Path(unquote(urlsplit(found.get("url", "")).path))
    if not found.get("url", "").startswith("file:") or not source.exists():
        return f"pip install 'duoactor[{extra}]'"
    tested = f"-c '{source}/constraints.txt' " * (source / "constraints.txt").is_file()  # versions that work together
    return f"pip install {tested}{'-e ' * bool(found.get('dir_info', {}).get('editable'))}'{source}[{extra}]'"
