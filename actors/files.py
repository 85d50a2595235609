"""Files that are written as a whole or not at all, and where this user's are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PART = ".part"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """To be written: what interrupts it, such as a full disk, leaves the file as it was and no other file."""
    half = path.with_name(f"{path.name}.{os.getpid()}{PART}")  # several processes may write the same file
    try:
        with half.open("wb") as file:
            yield file
        half.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise


def user_cache() -> Path:
    """This user's directory for what may be lost; without a home, a directory that cannot be written."""
    bases = Path(os.environ.get("XDG_CACHE_HOME", "")), Path(os.path.expanduser("~/.cache"))  # leaves ~ without a home
    return next((base for base in bases if base.is_absolute()), Path(os.devnull)) / "duoactor"
