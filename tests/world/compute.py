"""Where a verifier's forwards run in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from actors.verifier.compute import Compute
from protocols.transport import Backlog

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


class LateThread(VirtualThread):
    """A thread whose jobs are done at the end of their time, which is the same for all."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            if not future.cancelled():
                future.set_result(job())
                self.owed_s = 0.0

        loop.call_later(self.seconds, run)
        return future


class HeldInbox(Backlog[Any]):
    """A socket whose owner may be computing: what arrives meanwhile lies there, and is read when somebody looks."""

    held = False

    async def get(self) -> Any:
        while self.held or not self._items:
            self.raise_if_closed()
            self._changed.clear()
            await self._changed.wait()
        return self._items.popleft()

    def release(self) -> None:
        self.held = False
        self._changed.set()


class VirtualInline(VirtualThread):
    """A forward in the event loop's own turn: nothing that arrives is read before it ends, and whoever waits for the
    forward has the next turn."""

    overlaps = False

    def __init__(self, inbox: HeldInbox) -> None:
        super().__init__()
        self.inbox = inbox

    def start(self, job: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(self._begin, job, future)
        return future

    def _begin(self, job: Callable[[], T], future: asyncio.Future[T]) -> None:
        if future.cancelled():
            return
        self.inbox.held = True
        super().start(job).add_done_callback(lambda done: self._end(done, future))

    def _end(self, done: asyncio.Future[T], future: asyncio.Future[T]) -> None:
        if not future.cancelled() and not done.cancelled():
            future.set_result(done.result())
        self.inbox.release()
