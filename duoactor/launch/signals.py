"""Ending in order: a signal cancels the main task, so that everything it has entered is left."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Terminated(BaseException):
    """SIGTERM or SIGHUP came; everything was ended in order."""


def run_until_signal(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run``, but SIGINT, SIGTERM and SIGHUP cancel ``main``, so that its children are stopped.

    SIGINT also where it came to us ignored: a shell script starts ``duoactor up &`` so, and Python then leaves it
    ignored. SIGHUP only where it is not: that is what ``nohup`` is for. Raises KeyboardInterrupt or
    :class:`Terminated` once ``main`` has ended.
    """
    signals: list[int] = []

    async def body() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(number: int) -> None:
            signals.append(number)
            task.cancel()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    loop.add_signal_handler(number, end, number)
        return await main

    try:
        return asyncio.run(body())
    except asyncio.CancelledError:
        if not signals:
            raise
        raise (KeyboardInterrupt if signals[0] == signal.SIGINT else Terminated) from None
