"""The type of a model's weights: the requested one, or the fastest on its device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from actors.engines.decoder.configuration import compiled_spec, multiplies_bfloat16
from actors.engines.weights.draft_vocabulary import head_size
from protocols.errors import ConfigError

LARGE = 200_000_000  # parameters above which a CPU is limited by reading weights and not by arithmetic
SMALL_DRAFT = 8_000_000  # parameters below which int8 does not help: a step of 1.5M takes 0.12 ms, in bfloat16 0.10 ms
AUTO, INT8 = "auto", "int8"
NO_INT8 = (
    "an int8 {} needs a CPU, a family that is fused and the extra duoactor[jit]; choose {} bfloat16 or float32 here"
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def target_dtype(asked: str, device: torch.device, config: Any) -> tuple[torch.dtype, bool]:
    """The type that a target is loaded in, and whether its weights are quantised to int8 then. Raises ConfigError.

    ``auto`` is bfloat16 on a GPU. On a CPU it is bfloat16 for large models if the CPU multiplies bfloat16, and for
    models published in bfloat16 if compiled layers multiply it. Answers then take 0.6 to 0.95 times as long as in
    float32 (docs/experiments/engine-weights.md); else float32. ``int8`` is another model, with texts of its own, so
    never chosen by itself; all that is no weight of a matrix is in the type of ``auto``."""
    if asked == INT8:
        if compiled_spec(config, device) is None:
            raise ConfigError(NO_INT8.format("target", "--dtype"))
        return target_dtype(AUTO, device, config)[0], True
    published = getattr(config, "dtype", None)
    if asked == AUTO and device.type == "cpu" and published == torch.bfloat16 and multiplies_bfloat16(config):
        return torch.bfloat16, False
    return _dtype(asked, device, config), False


def draft_dtype(asked: str, device: torch.device, config: Any) -> tuple[torch.dtype, bool]:
    """The type of a draft's weights, and whether they are quantised to int8 then. Raises ConfigError.

    ``auto`` is a target's on a GPU. Of compiled layers it is int8, or for a small draft bfloat16 if they multiply that:
    rounding costs a draft next to no acceptance."""
    compiled, automatic = compiled_spec(config, device) is not None, asked == AUTO and device.type == "cpu"
    if asked == INT8 or (automatic and compiled and parameters(config) >= SMALL_DRAFT):
        if not compiled:
            raise ConfigError(NO_INT8.format("draft", "--draft-dtype"))
        return torch.float32, True
    if automatic and multiplies_bfloat16(config):
        return torch.bfloat16, False
    return _dtype(asked, device, config), False


def _dtype(asked: str, device: torch.device, config: Any) -> torch.dtype:
    if asked == AUTO:
        faster = device.type != "cpu" or (cpu_has_bfloat16() and parameters(config) >= LARGE)
        return torch.bfloat16 if faster else torch.float32
    if asked not in DTYPES:
        raise ConfigError(f"dtype {asked!r} is not known; choose {AUTO}, {', '.join(DTYPES)}, or {INT8} on a CPU")
    return DTYPES[asked]


def parameters(config: Any) -> int:
    """A rough count by the configuration alone, because the type is chosen before the weights are loaded."""
    text = config.get_text_config()
    hidden, layers = int(text.hidden_size), int(text.num_hidden_layers)
    inner = int(getattr(text, "intermediate_size", 4 * hidden) or 4 * hidden)
    return layers * hidden * (4 * hidden + 3 * inner) + head_size(config) * hidden


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; emulation is ten times slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
