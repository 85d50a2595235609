"""How fast this machine's memory is read: what bounds a token of one stream, which reads all weights once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from actors.kept import kept_of_machine

BYTES = 512 << 20  # more than caches hold
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Bandwidth:
    gigabytes: float  # a second


def memory_bandwidth(threads: int) -> float:
    """Gigabytes a second by ``threads`` threads, the quickest of several passes; kept from an earlier start."""
    return kept_of_machine(Bandwidth, lambda: Bandwidth(_measure(threads)), threads=threads).gigabytes


def _measure(threads: int) -> float:
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(_read, [BYTES // threads] * threads))


def _read(size: int) -> float:
    """By a thread's own time, so that what takes its core away counts for nothing."""
    numbers, quickest = np.ones(size // 4, np.int32), float("inf")
    for _ in range(REPEATS):
        began = time.thread_time()
        numbers.max()
        quickest = min(quickest, time.thread_time() - began)
    return size / quickest / 1e9
