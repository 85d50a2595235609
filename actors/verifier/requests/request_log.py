"""``--log-requests``: finished requests in a file, for replay and for learning. Written by a thread of its own.

Nothing here may disturb serving: what the file does not take, and what comes faster than it takes, is not logged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from pathlib import Path

from actors.replay.logged import LoggedRequest, encoded

log = logging.getLogger("duoactor.verifier")
MAX_BYTES = 64 << 20  # then the file becomes FILE.1 and another begins: some 20,000 requests of 600 tokens in either
MAX_PENDING = 1000  # requests that wait for the disk
LAST_WORDS_S = 2.0  # that a verifier which ends waits for it


class RequestLog:
    """Only its owner may read it: the file holds what people asked and were told."""

    def __init__(self, file: str, max_bytes: int = MAX_BYTES) -> None:
        self.path = Path(file)
        self.lost = 0  # requests that are not in the file
        self._max_bytes = max_bytes
        self._pending: queue.Queue[LoggedRequest | None] = queue.Queue(MAX_PENDING)
        self._file = -1
        self._size = 0
        self._warned = False
        self._thread = threading.Thread(target=self._write_all, name="request-log", daemon=True)
        self._thread.start()

    def add(self, request: LoggedRequest) -> None:
        """Never waits."""
        try:
            self._pending.put_nowait(request)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """What is pending is written, unless the disk takes too long."""
        with contextlib.suppress(queue.Full):
            self._pending.put(None, timeout=LAST_WORDS_S)
            self._thread.join(LAST_WORDS_S)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (request := self._pending.get()) is not None:
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
            self._turn()
        written = os.write(self._file, line)
        if written < len(line):
            raise OSError("no space left for a whole line")
        self._size += written

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            self._turn()  # its writer was killed in the middle of a line, which stays the last of its file

    def _turn(self) -> None:
        os.close(self._file)
        self._file = -1
        os.replace(self.path, f"{self.path}.1")
        self._open()

    def _failed(self, error: OSError) -> None:
        """The next request tries again, behind the last whole line."""
        if not self._warned:
            self._warned = True
            log.warning("requests are not logged to %s (%s); serving goes on", self.path, error)
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            os.close(self._file)
            self._file = -1
