"""Whether what numba compiles (:mod:`actors.engines.decoder.cpu`) can be used here."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import subprocess
import sys
from types import ModuleType

from actors.kept import directory

log = logging.getLogger("duoactor.engines")
BESIDE = "actors.engines.decoder.cpu.pieces"  # half of what there is to compile, which no other half calls by name


@functools.cache
def compiled_kernels() -> ModuleType | None:
    """The kernels, compiled or read from numba's cache; None without numba, or where it cannot keep or compile them."""
    if importlib.util.find_spec("numba") is None:
        return None
    from filelock import FileLock
    from numba.core import event

    class OneAtATime(event.Listener):
        """Of several processes one compiles; the others wait at their first function and find the rest in its cache."""

        lock: FileLock | None = None
        beside: subprocess.Popen[bytes] | None = None

        def on_start(self, event: object) -> None:
            if self.lock is None:
                log.info("compiling the layers for this processor, the first time only")
                self.lock = FileLock(directory() / "compiling.lock")
                with contextlib.suppress(OSError):  # without the right to write there each compiles for itself
                    directory().mkdir(mode=0o700, parents=True, exist_ok=True)
                    self.lock.acquire()
                self.beside = _compile_beside()

        def on_end(self, event: object) -> None: ...

    try:
        compiling = OneAtATime()
        with event.install_listener("numba:compile", compiling):
            from actors.engines.decoder.cpu import kernels

            if compiling.beside is not None:
                compiling.beside.wait()
            importlib.import_module(BESIDE)
    except Exception as error:
        log.warning("numba cannot compile the decoder's kernels, and slower operations are used: %s", error)
        return None
    if compiling.lock is not None:
        compiling.lock.release()
    return kernels


def _compile_beside() -> subprocess.Popen[bytes] | None:
    """A process that compiles half of it at the same time; None where there is one core."""
    pinned = hasattr(os, "sched_getaffinity")
    with contextlib.suppress(OSError):
        # an actor may be pinned to one core, beside those of actors that wait for this one: its parent has them all
        cpus = os.sched_getaffinity(os.getppid()) if pinned else range(os.cpu_count() or 1)
        if len(cpus) > 1:
            paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            quiet = subprocess.DEVNULL  # what fails there is compiled here again, and says so
            beside = subprocess.Popen(
                [sys.executable, "-c", f"import {BESIDE}"], env=paths, stdin=quiet, stdout=quiet, stderr=quiet
            )
            if pinned:
                os.sched_setaffinity(beside.pid, cpus)
            return beside
    return None
