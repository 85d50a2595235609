"""Whether what numba compiles (:mod:`actors.engines.decoder.cpu`) can be used here, and for which sizes."""

from __future__ import annotations

import functools
import importlib.util
import logging
from types import ModuleType

log = logging.getLogger("duoactor.engines")


@functools.cache
def compiled_kernels() -> ModuleType | None:
    """The kernels, compiled or read from numba's cache; None without numba, or where it cannot keep or compile them."""
    if importlib.util.find_spec("numba") is None:
        return None
    from numba.core import event

    class Announcement(event.Listener):
        told = False

        def on_start(self, event: object) -> None:
            if not self.told:
                log.info("compiling the layers for this processor, the first time only")
            self.told = True

        def on_end(self, event: object) -> None: ...

    try:
        with event.install_listener("numba:compile", Announcement()):
            from actors.engines.decoder.cpu import kernels
    except Exception as error:
        log.warning("numba cannot compile the decoder's kernels, and slower operations are used: %s", error)
        return None
    return kernels


def fits(lanes: int, *sizes: int) -> bool:
    """Whether a model's width, of a head too and of its gated layers, fill vectors of so many numbers."""
    return not any(size % lanes for size in sizes)
