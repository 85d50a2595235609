"""Virtual time: an event loop whose clock jumps to the next timer, and processes that computing keeps busy.

The actors run on it as they are; what their models and messages take is told to the clock instead of waited for.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Generator
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

        async def held() -> Any:
            return await _Held(self, part)

        return held()

    def run(self, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """``main`` and every task that it starts run in this process."""
        asyncio.get_running_loop().set_task_factory(_task)  # type: ignore[arg-type]
        token = _PROCESS.set(self)
        try:
            return asyncio.create_task(main)
        finally:
            _PROCESS.reset(token)


class Metered(Process):
    """A process of which is told what its own code takes of the CPU; on the virtual clock that takes no time."""

    def __init__(self, timer: Callable[[], float] = time.thread_time) -> None:
        super().__init__()
        self.own_s = 0.0  # in steps that are over
        self._aside_s = 0.0
        self._timer = timer

    def wrap(self, part: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return _Counted(self, part)

    def counted(self, work: Callable[[], T]) -> T:
        begin, aside_s = self._timer(), self._aside_s
        try:
            return work()
        finally:
            self.own_s += self._timer() - begin - (self._aside_s - aside_s)

    def aside(self, work: Callable[[], T]) -> T:
        """What a model computes in the middle of it is none of its own."""
        begin = self._timer()
        try:
            return work()
        finally:
            self._aside_s += self._timer() - begin


def now_here() -> float:
    """Seconds on the clock of the process whose code is running."""
    process = _PROCESS.get()
    return asyncio.get_running_loop().time() if process is None else process.clock()


class _Held:
    """A coroutine of a process: each of its steps waits until the process is free."""

    def __init__(self, process: Process, part: Coroutine[Any, Any, Any]) -> None:
        self.process, self.part = process, part

    def __await__(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            while (wait := self.process.free_at - asyncio.get_running_loop().time()) > 0:
                try:
                    yield from asyncio.sleep(wait).__await__()
                except asyncio.CancelledError as cancelled:
                    error = cancelled
            try:
                waits_for = self.part.send(None) if error is None else self.part.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown


class _Counted(Coroutine[Any, Any, T]):
    """A coroutine of a process each step of which is counted."""

    def __init__(self, process: Metered, part: Coroutine[Any, Any, T]) -> None:
        self.process, self.part = process, part

    def send(self, value: Any) -> Any:
        return self.process.counted(lambda: self.part.send(value))

    def throw(self, *error: Any) -> Any:
        return self.process.counted(lambda: self.part.throw(*error))

    def close(self) -> None:
        self.part.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self.part.__await__()


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def _task(loop: asyncio.AbstractEventLoop, part: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    process = _PROCESS.get()
    return asyncio.Task(part if process is None else process.wrap(part), loop=loop, **options)
