"""What a start does now, reported to the supervisor of this process: nothing is written elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def is_watched() -> bool:
    """Whether a supervisor reads standard error and shows what follows a carriage return as progress."""
    return os.environ.get("TQDM_POSITION") == "-1" and not sys.stderr.isatty()


@contextmanager
def doing(text: str) -> Iterator[Callable[[str], None]]:
    """Show ``text`` while the block runs, and after it what the given function gets, such as how far it is."""

    def tell(how_far: str) -> None:
        if is_watched():
            print(f"\r{text}{how_far}\r", end="", file=sys.stderr, flush=True)

    tell("")
    try:
        yield tell
    finally:
        if is_watched():
            print("\r \n", end="", file=sys.stderr, flush=True)
