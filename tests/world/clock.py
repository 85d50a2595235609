"""Virtual time: an event loop whose clock jumps to the next timer, and processes that computing keeps busy.

The actors run on it as they are; what their models and messages take is told to the clock instead of waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits and no timer is set")
            self.loop.now += timeout or 1e-9  # else a timer that rounding fires too early would fire for ever
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _Jump()
        selector.loop = self
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class Process:
    """A process of one thread: while it computes, none of its tasks runs, and what it says is said at the end."""

    def __init__(self) -> None:
        self.free_at = 0.0  # when what it computes is done

    def clock(self) -> float:
        return max(asyncio.get_running_loop().time(), self.free_at)

    def compute(self, seconds: float) -> None:
        self.free_at = self.clock() + seconds

    def wrap(self, part: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """What a task of this process is made of."""
        return _Held(self, part)

    def run(self, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """``main`` and every task that it starts run in this process."""
        asyncio.get_running_loop().set_task_factory(_task)  # type: ignore[arg-type]
        token = _PROCESS.set(self)
        try:
            return asyncio.create_task(main)
        finally:
            _PROCESS.reset(token)


def now_here() -> float:
    """Seconds on the clock of the process whose code is running."""
    process = _PROCESS.get()
    return asyncio.get_running_loop().time() if process is None else process.clock()


class _Held(Coroutine[Any, Any, T]):
    """A coroutine of a process: each of its steps waits until the process is free."""

    def __init__(self, process: Process, part: Coroutine[Any, Any, T]) -> None:
        self._process, self._part = process, part
        self._steps = self._held()

    def _held(self) -> Generator[Any, Any, T]:
        error: BaseException | None = None
        while True:
            while (wait := self._process.free_at - asyncio.get_running_loop().time()) > 0:
                try:
                    yield from asyncio.sleep(wait).__await__()
                except asyncio.CancelledError as cancelled:
                    error = cancelled
            try:
                waits_for = self._part.send(None) if error is None else self._part.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            error = None
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown

    def send(self, value: Any) -> Any:
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        try:
            return self._steps.throw(*error)
        finally:
            if self._steps.gi_frame is None:  # perhaps before its first step
                self._part.close()

    def close(self) -> None:
        self._steps.close()
        self._part.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._steps


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def _task(loop: asyncio.AbstractEventLoop, part: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    process = _PROCESS.get()
    return asyncio.Task(part if process is None else process.wrap(part), loop=loop, **options)
