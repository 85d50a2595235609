"""Memory for weights in pages of 2 MiB, where the kernel grants them: numpy asks for those in large arrays.

A forward of few rows reads all weights once and in order. In pages of 4 KiB, under a hypervisor above all, looking up
where the next one lies takes a part of a forward, and the processor fetches nothing ahead across their borders.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

CHUNK = 64 << 20  # bytes that are asked for at once; what is not written to takes no memory
LINE = 64  # bytes of a line of the cache
Room = Callable[[int], NDArray[np.uint8]]  # memory for a number of bytes


class HugePages:
    """Arrays that are never freed one by one: the memory goes when the last of them is gone."""

    def __init__(self) -> None:
        self._chunk: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0

    def room(self, size: int) -> NDArray[np.uint8]:
        """Memory for ``size`` bytes, after the earlier ones."""
        if self._used + size > len(self._chunk):
            self._chunk = np.empty(max(CHUNK, size + LINE), np.uint8)
            self._used = -self._chunk.ctypes.data % LINE
        begin, self._used = self._used, self._used + -(-size // LINE) * LINE
        return self._chunk[begin : begin + size]
