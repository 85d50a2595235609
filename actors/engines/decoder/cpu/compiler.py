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
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from actors.cpus import own_cpus
from actors.doing import doing
from actors.kept import directory

log = logging.getLogger("duoactor.engines")
OTHER_HALF = "actors.engines.decoder.cpu.pieces"  # the second part to compile; nothing calls it by name
# A process that ends with the one whose pipe is its standard input
WITH_PARENT = "import os, threading; threading.Thread(target=lambda: os.read(0, 1) or os._exit(1), daemon=True).start()"


_one_thread = threading.Lock()


@functools.cache
def compiled_kernels() -> ModuleType | None:
    """The kernels, compiled or read from numba's cache; None without numba, or where it cannot keep or compile them."""
    with _one_thread:  # each listens to what all of a process compile, and would want the lock that another has
        return _compiled_kernels()


@functools.cache
def _compiled_kernels() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    from filelock import FileLock, Timeout
    from numba.core import event

    shown = contextlib.ExitStack()

    class OneAtATime(event.Listener):
        """One of several processes compiles; the others wait at their first function and find the rest in its cache."""

        lock: FileLock | None = None
        other: subprocess.Popen[bytes] | None = None  # compiles the other half
        tell: Callable[[str], None] | None = None
        compiled = 0

        def on_start(self, event: object) -> None:
            if self.lock is not None:
                return
            self.lock = FileLock(directory() / "compiling.lock")
            with contextlib.suppress(OSError):  # without the right to write there each compiles for itself
                directory().mkdir(mode=0o700, parents=True, exist_ok=True)
                try:
                    self.lock.acquire(blocking=False)
                except Timeout:
                    log.info("waiting for another process, which compiles the layers for this processor")
                    self.lock.acquire()
                    return  # all but this function is there
            text = "compiling the layers for this processor, the first time only"
            log.info(text)
            self.tell = shown.enter_context(doing(text))
            if OTHER_HALF not in sys.modules:
                self.other = _compile_other_half()

        def on_end(self, event: object) -> None:
            self.compiled += 1
            if self.tell is not None:
                self.tell(f", {self.compiled} functions done")

    compiling = OneAtATime()
    try:
        with event.install_listener("numba:compile", compiling):
            from actors.engines.decoder.cpu import kernels

            if compiling.other is not None:
                compiling.other.wait()
            importlib.import_module(OTHER_HALF)
        if compiling.compiled:
            _forget_others(Path(kernels.run_layers.stats.cache_path))
        return kernels
    except Exception as error:
        log.warning("numba cannot compile the decoder's kernels, and slower operations are used: %s", error)
        return None
    finally:
        shown.close()
        if compiling.lock is not None:
            compiling.lock.release()


def _forget_others(cache: Path) -> None:
    """Delete machine code of other sources, such as an earlier version's, from numba's directory."""
    from actors.engines.decoder.cpu.linking import SOURCES

    for file in cache.glob("*.nb[ci]"):
        if SOURCES not in file.name:
            file.unlink(missing_ok=True)


def _compile_other_half() -> subprocess.Popen[bytes] | None:
    """A process that compiles it at the same time; None where there is one core."""
    pinned = hasattr(os, "sched_getaffinity")
    try:
        # an actor may be pinned to one core, beside those of actors that wait for this one: its parent has them all
        cpus = os.sched_getaffinity(os.getppid()) if pinned else range(own_cpus())
        if len(cpus) < 2:
            return None
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        line = [sys.executable, "-c", f"{WITH_PARENT}; import {OTHER_HALF}"]
        quiet = subprocess.DEVNULL  # what fails there is compiled here again, and says so
        other = subprocess.Popen(line, env=paths, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if pinned:
            os.sched_setaffinity(other.pid, cpus)
    return other
