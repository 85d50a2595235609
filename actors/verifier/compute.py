"""The place of model code: on a thread of its own, so that sockets are served during a forward; or in the event loop,
where forwards are short and use the same core.

A target that computes with several OpenMP threads runs on the thread that built it. OpenMP keeps a team of workers for
each thread that ever ran a parallel region. Once there are more workers than CPUs, libgomp's workers sleep between
regions instead of spinning, and the kernel has to wake them for each of a forward's hundreds of regions: on two CPUs
the bundled target made 155 tokens/s with a second thread's team and 350 with the first's (docs/experiments/rounds.md).
Compiled layers have a team of their own that serves any thread (:mod:`actors.engines.decoder.cpu.team`).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
# Longest forward that runs in the event loop: what a shorter one would hide is less than what a thread costs. Beside an
# H200 a job's way to a thread and back takes 0.16 ms: a 7B target made 520 tokens/s without it for 475 (PLD).
INLINE_US = 50_000.0
# Longest time without a turn of the event loop, which takes some 50 µs. Messages are read before every round anyway.
TURN_S = 0.005
NICE = 5  # a quarter of a CPU beside a thread that wants all of it: a prompt of 100,000 tokens takes 0.1 s alone


class Compute(Protocol):
    """Runs jobs one at a time, in the order in which they were started."""

    overlaps: bool  # whether the event loop goes on while a job runs

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """The future of the job's result, or of the exception that it raised."""
        ...


def runs_inline(device: str, openmp_threads: int, forward_us: float) -> bool:
    """Whether the event loop may run a target that another thread built: short forwards, without OpenMP's threads."""
    return forward_us <= INLINE_US and (device != "cpu" or openmp_threads == 1)


class ThreadCompute(Compute):
    """One thread for all jobs: models are not thread-safe, and a second thread would only compete for the core."""

    overlaps = True

    def __init__(self, gives_way: bool = False) -> None:
        """``gives_way``: to all other threads that want the same CPU."""
        first = _give_way if gives_way else None
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute", initializer=first)

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self.pool, job)

    def close(self) -> None:
        """Start no further job. A running one is not waited for."""
        self.pool.shutdown(wait=False, cancel_futures=True)  # the interpreter joins its thread at exit


def _give_way() -> None:
    """Lower this thread's priority. Only Linux has one for each thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)


class InlineCompute(Compute):
    """Runs the job in the event loop's thread.

    Waking a compute thread, and sharing the interpreter lock and perhaps a core with it, cost more than the overlap
    saves (docs/experiments/rounds.md). Tests on a virtual clock use it too.
    """

    overlaps = False

    def __init__(self, turn_s: float = 0.0) -> None:
        """``turn_s``: between two turns of the event loop; a job that is not due for one runs at once."""
        self.turn_s, self._due = turn_s, 0.0

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)

        if loop.time() < self._due:
            run()
        else:
            loop.call_soon(run)
            self._due = loop.time() + self.turn_s
        return future
