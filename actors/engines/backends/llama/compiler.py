"""Whether the compiled layers can be used here, and for which models."""

from __future__ import annotations

import functools
import importlib.util
import logging
from types import ModuleType
from typing import Any

from actors.engines.backends.llama.weights import head_width, supports

log = logging.getLogger("duoactor.engines")


@functools.cache
def compiled_kernels() -> ModuleType | None:
    """The kernels, compiled or read from numba's cache; None without numba, or where it cannot keep or compile them."""
    if importlib.util.find_spec("numba") is None:
        return None
    from numba.core import event

    class Announcement(event.Listener):  # type: ignore[misc]
        told = False

        def on_start(self, event: object) -> None:
            if not self.told:
                log.info("compiling the layers for this processor, the first time only")
            self.told = True

        def on_end(self, event: object) -> None: ...

    try:
        with event.install_listener("numba:compile", Announcement()):
            from actors.engines.backends.compiled import kernels
    except Exception as error:
        log.warning("numba cannot compile the decoder's kernels, and slower operations are used: %s", error)
        return None
    return kernels


def fits(lanes: int, *sizes: int) -> bool:
    """Whether a model's width, of a head too and of its gated layers, fill vectors of so many numbers."""
    return not any(size % lanes for size in sizes)


def multiplies_bfloat16(config: Any) -> bool:
    """Whether layers of that ``transformers`` configuration are compiled here, and their products of bfloat16 are twice
    as fast as those of float32."""
    kernels = compiled_kernels() if supports(config) else None
    if kernels is None or not kernels.HAS_BFLOAT16:
        return False
    return fits(kernels.LANES, config.hidden_size, head_width(config), config.intermediate_size)
