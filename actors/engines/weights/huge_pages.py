"""Memory for weights in pages of 2 MiB, where the kernel grants them.

A forward of few rows reads all weights once and in order. In pages of 4 KiB, under a hypervisor above all, looking up
where the next one lies takes a tenth of a forward, and the processor fetches nothing ahead across their borders.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

PAGE = 2 << 20  # bytes
CHUNK = 32 * PAGE  # asked for at once; what is not written to takes no memory
LINE = 64  # bytes: of a cache
Room = Callable[[int], NDArray[np.uint8]]  # memory for a number of bytes


class HugePages:
    """Arrays that are never freed one by one: the memory goes when the last of them is gone."""

    def __init__(self) -> None:
        self._chunk: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0

    def room(self, size: int) -> NDArray[np.uint8]:
        """Memory for ``size`` bytes, after the earlier ones."""
        if self._used + size > len(self._chunk):
            self._chunk, self._used = _chunk(max(CHUNK, size)), 0
        begin, self._used = self._used, self._used + -(-size // LINE) * LINE
        return self._chunk[begin : begin + size]


def _chunk(size: int) -> NDArray[np.uint8]:
    """Fresh memory. Of numpy's own large arrays one in four had small pages at a first start."""
    memory = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them: small pages do as well
            memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    return whole[-whole.ctypes.data % PAGE :]
