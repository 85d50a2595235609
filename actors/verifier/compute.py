"""Where model code runs: on a thread of its own, so that sockets are served while a forward is under way, or, where
forwards are short and on this very core, in the event loop between two of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Compute(Protocol):
    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Begin the job now; jobs run one at a time, in order."""
        ...

    def close(self) -> None: ...


class ThreadCompute:
    """One thread for all model code: models are not thread-safe, and a second thread would only fight for the core."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self.pool, job)

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)


class InlineCompute:
    """Runs the job in the event loop's thread, in its next turn.

    With the target on a CPU a second thread has no core of its own: waking it and sharing the interpreter lock with it
    cost more than they hide (docs/benchmarks.md). Also for tests on a virtual clock.
    """

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
