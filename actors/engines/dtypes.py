"""Which type a model's weights have: the one that is asked for, or the one that is fastest on this device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from actors.engines.backends.llama.compiler import multiplies_bfloat16
from actors.engines.draft_vocabulary import head_size
from protocols.errors import ConfigError

LARGE = 200_000_000  # parameters from which reading weights, not arithmetic, limits a CPU
SMALL_DRAFT = 8_000_000  # parameters below which int8 buys nothing: a step is 0.12 ms for 0.10 in bfloat16 (1.5M)
AUTO, INT8 = "auto", "int8"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def target_dtype(asked: str, device: torch.device, config: Any) -> torch.dtype:
    """``auto``: bfloat16 on a GPU; on a CPU for large models where it has that, and for those published in bfloat16
    whose compiled layers multiply it (whole answers take 0.6 to 0.95 of float32's time: docs/experiments.md)."""
    published = getattr(config, "dtype", None)
    if asked == AUTO and device.type == "cpu" and published == torch.bfloat16 and multiplies_bfloat16(config):
        return torch.bfloat16
    return _dtype(asked, device, config)


def draft_dtype(asked: str, device: torch.device, config: Any) -> tuple[torch.dtype, bool]:
    """And whether its products are in int8, which starts from float32. ``auto``: as a target's, but on a CPU int8, or
    for a small one bfloat16 where compiled layers multiply it: what rounding changes costs a draft next to nothing."""
    automatic = asked == AUTO and device.type == "cpu"
    if asked == INT8 or (automatic and parameters(config) >= SMALL_DRAFT):
        if device.type != "cpu":
            raise ConfigError("int8 drafts run on a CPU; choose --draft-dtype bfloat16 on a GPU")
        return torch.float32, True
    if automatic and multiplies_bfloat16(config):
        return torch.bfloat16, False
    return _dtype(asked, device, config), False


def _dtype(asked: str, device: torch.device, config: Any) -> torch.dtype:
    if asked == AUTO:
        faster = device.type != "cpu" or (cpu_has_bfloat16() and parameters(config) >= LARGE)
        return torch.bfloat16 if faster else torch.float32
    if asked not in DTYPES:
        raise ConfigError(f"dtype {asked!r} is not known; choose {AUTO}, {', '.join(DTYPES)}")
    return DTYPES[asked]


def parameters(config: Any) -> int:
    """A rough count from the configuration alone: the type is chosen before the weights are loaded."""
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
