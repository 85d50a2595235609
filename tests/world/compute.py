"""Where a verifier's forwards run in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from actors.verifier.compute import Compute

T = TypeVar("T")


class VirtualThread(Compute):
    """A thread beside the event loop: a job is done at its start, and known of when its time is up."""

    overlaps = True

    def __init__(self) -> None:
        self.owed_s = 0.0

    def compute(self, seconds: float) -> None:
        self.owed_s += seconds

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        result = job()
        owed_s, self.owed_s = self.owed_s, 0.0
        loop.call_later(owed_s, lambda: None if future.cancelled() else future.set_result(result))
        return future

    def close(self) -> None: ...
