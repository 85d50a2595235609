"""Where model code runs: on a thread of its own, so that sockets are served while a forward is under way, or, where
forwards are short and on this very core, in the event loop between two of its turns.

A target that computes with several of OpenMP's threads is served by the thread that built it: OpenMP keeps a team of
workers for each thread that ever ran a parallel region. Once there are more workers than CPUs, libgomp's no longer spin
between regions but sleep, and each of a forward's hundreds of regions waits for the kernel to wake them: on two CPUs
the bundled target made 155 tokens/s from a second thread's team, 350 from the first's (docs/experiments.md).
Where layers are compiled, helpers of our own serve whoever calls (:mod:`actors.engines.backends.compiled.team`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")
INLINE_US = 50_000.0  # a CPU forward this short runs in the event loop: handing it to a thread costs more than it hides


class Compute(Protocol):
    overlaps: bool  # whether the event loop goes on while a job runs

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Begin the job now; jobs run one at a time, in order."""
        ...

    def close(self) -> None: ...


def runs_inline(device: str, openmp_threads: int, forward_us: float) -> bool:
    """Whether the event loop's thread may run what another thread built: short forwards on a CPU."""
    return device == "cpu" and openmp_threads == 1 and forward_us <= INLINE_US


class ThreadCompute:
    """One thread for all model code: models are not thread-safe, and a second thread would only fight for the core."""

    overlaps = True

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self.pool, job)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)  # the interpreter waits for its thread


class InlineCompute:
    """Runs the job in the event loop's thread, in its next turn.

    With a target on a CPU a thread for it has no core of its own: waking it and sharing the interpreter lock with it
    cost more than they hide (docs/experiments.md). Also for tests on a virtual clock.
    """

    overlaps = False

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

        loop.call_soon(run)
        return future

    def close(self) -> None: ...
