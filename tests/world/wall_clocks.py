"""The wall clock of single processes, moved by hand; the machine's stays.

A small library stands in front of the C library's ``clock_gettime``, ``gettimeofday`` and ``time``, so that compiled
code is told the moved time as well. Clocks that durations are measured by are the machine's. So is the clock by which
the kernel ends a wait until a time of day (``sem_timedwait``): such a wait is wrong by all that the clock was moved, as
one is during which a real clock jumps.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("wall_clock.c")
COMPILER = shutil.which("cc") if sys.platform == "linux" else None
SECONDS = struct.Struct("=q")
HOUR, DAY = 3600, 86400


class WallClocks:
    def __init__(self, directory: Path) -> None:
        """``directory`` for the library and the table. RuntimeError where there is no C compiler, or no Linux."""
        if COMPILER is None:
            raise RuntimeError("wall clocks can be moved on Linux only, where a C compiler is installed as `cc`")
        self._library, self._table = directory / "wall_clock.so", directory / "wall_clocks"
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O2", "-o", self._library, SOURCE, "-ldl"], check=True)
        with self._table.open("wb") as table:
            table.truncate(SECONDS.size * int(Path("/proc/sys/kernel/pid_max").read_text()))

    @property
    def environment(self) -> dict[str, str]:
        """Variables of processes whose clocks can be moved."""
        return {"LD_PRELOAD": str(self._library), "WALL_CLOCKS": str(self._table)}

    def reaches(self, pid: int) -> bool:
        """Whether the process was started with :attr:`environment`."""
        return str(self._library) in Path(f"/proc/{pid}/maps").read_text()

    def move(self, pid: int, seconds: int) -> None:
        """The clock of the process is so far ahead of the machine's from now on, or behind it. The next process with
        this id begins with the same clock."""
        file = os.open(self._table, os.O_WRONLY)
        try:
            os.pwrite(file, SECONDS.pack(seconds), SECONDS.size * pid)
        finally:
            os.close(file)
