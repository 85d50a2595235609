"""Which configurations of ``transformers`` the fused decoder computes, and whether in bfloat16."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.cpu.compiler import compiled_kernels, fits

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
ROPES = frozenset({"default", "linear", "llama3", "yarn"})  # angles that depend on the position alone


def supports(config: Any) -> bool:
    """Whether the fused decoder computes that ``transformers`` configuration; if not, TransformersEngine does."""
    if getattr(config, "model_type", "") not in FAMILIES or getattr(config, "quantization_config", None):
        return False
    if config.hidden_act != "silu":
        return False
    kinds = getattr(config, "layer_types", None)
    if any(kind != "full_attention" for kind in kinds or ()):
        return False
    if not kinds and getattr(config, "sliding_window", None):
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("partial_rotary_factor", 1.0) != 1.0 or rope.get("rope_type", "default") not in ROPES:
        return False
    return head_width(config) % 2 == 0


def head_width(config: Any) -> int:
    width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return width


def is_compiled(config: Any) -> bool:
    """Whether numba compiles the layers of that ``transformers`` configuration here."""
    kernels = compiled_kernels() if supports(config) else None
    if kernels is None:
        return False
    return fits(kernels.LANES, config.hidden_size, head_width(config), config.intermediate_size)


def multiplies_bfloat16(config: Any) -> bool:
    """Whether products of bfloat16 are twice as fast there as those of float32."""
    kernels = compiled_kernels()
    return kernels is not None and kernels.HAS_BFLOAT16 and is_compiled(config)
