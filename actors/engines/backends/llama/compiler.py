"""Whether the compiled layers can be used here, and for which models."""

from __future__ import annotations

import functools
import importlib.util
import logging
from types import ModuleType
from typing import Any

from actors.engines.backends.llama.weights import Shape, supports

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
                log.info("compiling the layers for this processor; the next start reads them from disk")
            self.told = True

        def on_end(self, event: object) -> None: ...

    try:
        with event.install_listener("numba:compile", Announcement()):
            from actors.engines.backends.compiled import kernels
    except Exception as error:
        log.warning("numba cannot compile the decoder's kernels, and slower operations are used: %s", error)
        return None
    return kernels


def fits(shape: Shape, lanes: int) -> bool:
    return shape.width % lanes == 0 and shape.hidden % lanes == 0 and shape.inner % lanes == 0


def multiplies_bfloat16(config: Any) -> bool:
    """Whether layers of that ``transformers`` configuration are compiled here, and their products of bfloat16 are twice
    as fast as those of float32."""
    kernels = compiled_kernels() if supports(config) else None
    if kernels is None or not kernels.HAS_BFLOAT16:
        return False
    width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return not any(size % kernels.LANES for size in (width, config.hidden_size, config.intermediate_size))
