"""The CPUs that this process may run on, and work for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def own_cpus() -> int:
    """Their number."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cpus(work: Callable[[T], U], pieces: Iterable[T]) -> Iterator[U]:
    """What becomes of each piece, in their order. ``work`` lets go of the interpreter's lock, as NumPy does."""
    with ThreadPoolExecutor(own_cpus()) as pool:
        yield from pool.map(work, pieces)
