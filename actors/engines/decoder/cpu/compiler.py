"""Whether what numba compiles (:mod:`actors.engines.decoder.cpu`) can be used here."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import itertools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from actors.cpus import own_cpus
from actors.doing import doing
from actors.kept import directory

log = logging.getLogger("duoactor.engines")
HERE = "actors.engines.decoder.cpu"
HALVES = ((f"{HERE}.kernels", f"{HERE}.packing"), (f"{HERE}.pieces",))  # about as long to compile
# A process that ends when its standard input, a pipe from its parent, closes
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
        """One of several processes has the layers compiled; the others wait at their first function and find the rest
        in numba's cache."""

        lock: FileLock | None = None
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
            _have_compiled(shown.enter_context(doing(text)))

        def on_end(self, event: object) -> None:
            self.compiled += 1

    compiling = OneAtATime()
    try:
        with event.install_listener("numba:compile", compiling):
            kernels, *_ = (importlib.import_module(name) for half in HALVES for name in half)
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


def _have_compiled(tell: Callable[[str], None]) -> None:
    """Have the layers compiled by processes that end: hundreds of MB of LLVM's would stay in this one."""
    pinned = hasattr(os, "sched_getaffinity")
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    reader, writer = os.pipe()
    others: list[subprocess.Popen[bytes]] = []
    with os.fdopen(reader, "rb", buffering=0) as done, os.fdopen(writer, "wb") as out, contextlib.suppress(OSError):
        # an actor may be pinned to one core, beside those of actors that wait for this one: its parent has them all
        cpus = os.sched_getaffinity(os.getppid()) if pinned else range(own_cpus())
        for names in HALVES if len(cpus) > 1 else [[name for half in HALVES for name in half]]:
            line = [sys.executable, "-c", f"{WITH_PARENT}; import {__name__} as c; c.compile_now({[*names]})"]
            quiet = subprocess.DEVNULL  # what fails there is compiled here, and says so
            others.append(subprocess.Popen(line, env=paths, stdin=subprocess.PIPE, stdout=out, stderr=quiet))
            if pinned:
                os.sched_setaffinity(others[-1].pid, cpus)
        out.close()
        for count in itertools.takewhile(lambda _: done.read(1), itertools.count(1)):
            tell(f", {count} functions done")
    for other in others:
        other.wait()


def compile_now(names: Sequence[str]) -> None:
    """Compile these modules and write a byte for each function."""
    from numba.core import event

    class Telling(event.Listener):
        def on_start(self, event: object) -> None: ...

        def on_end(self, event: object) -> None:
            os.write(sys.stdout.fileno(), b".")

    with event.install_listener("numba:compile", Telling()):
        for name in names:
            importlib.import_module(name)
