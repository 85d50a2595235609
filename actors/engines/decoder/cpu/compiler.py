"""Whether what numba compiles (:mod:`actors.engines.decoder.cpu`) can be used here, and for which sizes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
from types import ModuleType

from actors.kept import directory

log = logging.getLogger("duoactor.engines")


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

        def on_start(self, event: object) -> None:
            if self.lock is None:
                log.info("compiling the layers for this processor, the first time only")
                self.lock = FileLock(directory() / "compiling.lock")
                with contextlib.suppress(OSError):  # without the right to write there each compiles for itself
                    directory().mkdir(mode=0o700, parents=True, exist_ok=True)
                    self.lock.acquire()

        def on_end(self, event: object) -> None: ...

    try:
        compiling = OneAtATime()
        with event.install_listener("numba:compile", compiling):
            from actors.engines.decoder.cpu import kernels
    except Exception as error:
        log.warning("numba cannot compile the decoder's kernels, and slower operations are used: %s", error)
        return None
    if compiling.lock is not None:
        compiling.lock.release()
    return kernels


def fits(lanes: int, *sizes: int) -> bool:
    """Whether a model's width, of a head too and of its gated layers, fill vectors."""
    return not any(size % lanes for size in sizes)
