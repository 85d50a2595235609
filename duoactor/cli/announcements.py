"""What the engines log while a command loads models in its own process, on the line that shows its progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def announced(show: Callable[[str], None]) -> Iterator[None]:
    """``show`` that layers are being compiled, which takes a while; warnings are lines of their own."""
    log, handler = logging.getLogger("duoactor"), _Announcements(show)
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


class _Announcements(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            self._show(f"{record.getMessage()} …")
        else:
            self._show("")
            click.echo(record.getMessage(), err=True)
