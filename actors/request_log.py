"""``--log-requests``: finished requests in a file, for replay and for learning.

A thread of its own writes it. Serving comes first: a request that cannot be written, or that comes while too many are
pending, is not logged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from pathlib import Path

from actors.records import LoggedRequest, encoded

log = logging.getLogger("duoactor.requests")
MAX_BYTES = 64 << 20  # then the file becomes FILE.1 and a new one begins: some 20,000 requests of 600 tokens in each
MAX_PENDING = 1 << 22  # tokens of requests that wait for the disk: some 160 MB
CLOSE_S = 2.0  # longest wait for the disk at the end


class RequestLog:
    """Only the file's owner may read it (mode 0600): it holds questions and answers of people."""

    def __init__(self, file: str, max_bytes: int = MAX_BYTES) -> None:
        self.path = Path(file)
        self.lost = 0  # requests that are not in the file
        self._max_bytes = max_bytes
        self._pending = queue.SimpleQueue[LoggedRequest | None]()  # None: there are no more
        self._added = self._taken = 0  # tokens that were put in and that the thread took out
        self._file = -1
        self._size = 0
        self._warned = False
        self._thread = threading.Thread(target=self._write_all, name="request-log", daemon=True)
        self._thread.start()

    def add(self, request: LoggedRequest) -> None:
        """Never waits."""
        if self._added - self._taken >= MAX_PENDING:
            self.lost += 1
        else:
            self._added += _size(request)
            self._pending.put(request)

    def close(self) -> None:
        """Write what is pending, unless the disk takes too long."""
        self._pending.put(None)
        self._thread.join(CLOSE_S)

    def _write_all(self) -> None:
        while (request := self._pending.get()) is not None:
            self._taken += _size(request)
            try:
                self._write(encoded(request))
            except OSError as error:
                self.lost += 1
                self._failed(error)
        if self._file >= 0:
            os.close(self._file)

    def _write(self, line: bytes) -> None:
        if self._file < 0:
            self._open()
        elif self._size + len(line) > self._max_bytes:
            self._rotate()
        written = os.write(self._file, line)
        if written < len(line):
            raise OSError("no space left for a whole line")
        self._size += written

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            self._rotate()  # its writer was killed in the middle of a line, which stays the file's last

    def _rotate(self) -> None:
        os.close(self._file)
        self._file = -1
        os.replace(self.path, f"{self.path}.1")
        self._open()

    def _failed(self, error: OSError) -> None:
        """Warn once, and cut the file after its last whole line; the next request tries again."""
        if not self._warned:
            self._warned = True
            log.warning("requests are not logged to %s (%s); serving goes on", self.path, error)
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            os.close(self._file)
            self._file = -1


def _size(request: LoggedRequest) -> int:
    """Its tokens, and one, so that none is nothing."""
    return 1 + len(request.prompt) + len(request.text)
