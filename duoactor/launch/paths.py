"""Where a verifier is found when nobody says where."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def runtime_directory() -> Path:
    """``$XDG_RUNTIME_DIR/duoactor``, or a directory of this user's own under the temporary directory."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        return Path(base) / "duoactor"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"duoactor-{user}"


def default_address() -> str:
    return f"ipc://{runtime_directory() / 'verifier.ipc'}"
