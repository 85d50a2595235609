"""The log of an actor: what is said again and again is said once a minute, with a count."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

EVERY_S = 60.0  # seconds in which equal lines count as one
MOST_LINES = 256  # different lines that are remembered


@dataclass(slots=True)
class EqualLines:
    record: logging.LogRecord
    at: float  # seconds
    more: int = 0  # times that it was to be said since


class Lines(logging.StreamHandler[TextIO]):
    """Writes a line at once, and at the end of its minute how often it came again."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._said: dict[tuple[str, int, str], EqualLines] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        key, now = (record.name, record.levelno, record.getMessage()), self._clock()
        said = self._said.get(key)
        if said is not None and now - said.at < EVERY_S:
            said.more += 1
            self._wait()
            return
        self.tell()
        if len(self._said) < MOST_LINES:
            self._said[key] = EqualLines(record, now)
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """In lines that a terminal can hold."""
        text = super().format(record)
        if not self.stream.isatty() or record.exc_info:
            return text
        from duoactor import render  # which an actor in a pipe need not load

        return render.folded(text, self.stream)

    def tell(self) -> None:
        """Print how often lines were repeated in the minute that is over, and forget them."""
        now = self._clock()
        self.acquire()
        try:
            for key, said in list(self._said.items()):
                if now - said.at >= EVERY_S:
                    del self._said[key]
                    self._count(said)
            if any(said.more for said in self._said.values()):
                self._wait()
        finally:
            self.release()

    def close(self) -> None:
        for said in self._said.values():
            self._count(said)
        self._said.clear()
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    def _count(self, said: EqualLines) -> None:
        if said.more:
            one = said.record
            words = f"{one.getMessage()} (and {said.more:,} more within {EVERY_S:.0f} s)"
            super().emit(logging.LogRecord(one.name, one.levelno, one.pathname, one.lineno, words, (), None))

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(EVERY_S, self._later)
            self._timer.daemon = True
            self._timer.start()

    def _later(self) -> None:
        self._timer = None
        self.tell()
