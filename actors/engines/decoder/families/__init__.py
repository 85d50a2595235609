"""Which families the fused decoder knows, by the ``model_type`` of their configuration: one small file each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.engines.decoder.families import (
    cohere,
    deepseek,
    dots,
    ernie,
    exaone,
    gemma,
    glm,
    gpt_oss,
    granite,
    lfm,
    llama,
    llama4,
    mamba,
    minimax,
    mixtral,
    nemotron,
    olmo,
    phi,
    qwen_moe,
    qwen_next,
    smollm,
    stablelm,
    starcoder,
)
from actors.engines.decoder.families.parts import Undescribed
from actors.engines.decoder.spec import DecoderSpec

__all__ = ["FAMILIES", "Undescribed", "describe"]

FAMILIES: dict[str, Callable[[Any], DecoderSpec]] = {
    "llama": llama.describe,
    "mistral": llama.describe,
    "ministral": llama.describe,
    "ministral3": llama.describe_ministral,
    "llama4_text": llama4.describe,
    "qwen2": llama.describe,
    "qwen3": llama.describe,
    "qwen2_vl_text": llama.describe,
    "qwen2_5_vl_text": llama.describe,
    "qwen3_vl_text": llama.describe,
    "qwen2_moe": qwen_moe.describe,
    "qwen3_moe": qwen_moe.describe,
    "qwen3_vl_moe_text": qwen_moe.describe,
    "qwen3_next": qwen_next.describe,
    "qwen3_5_text": qwen_next.describe,
    "qwen3_5_moe_text": qwen_next.describe,
    "lfm2": lfm.describe,
    "lfm2_moe": lfm.describe,
    "bamba": mamba.describe,
    "mixtral": mixtral.describe,
    "gpt_oss": gpt_oss.describe,
    "seed_oss": llama.describe,
    "arcee": llama.describe_arcee,
    "ernie4_5": llama.describe_neighbours,
    "helium": llama.describe_neighbours,
    "gemma": gemma.describe,
    "gemma2": gemma.describe,
    "gemma3_text": gemma.describe,
    "gemma4_text": gemma.describe_4,
    "phi": phi.describe_phi,
    "phi3": phi.describe,
    "smollm3": smollm.describe,
    "granite": granite.describe,
    "granitemoe": granite.describe,
    "granitemoeshared": granite.describe,
    "granitemoehybrid": granite.describe,
    "olmo2": olmo.describe,
    "olmo3": olmo.describe,
    "olmoe": olmo.describe_experts,
    "glm": glm.describe,
    "glm4": glm.describe,
    "glm4_moe": glm.describe_experts,
    "glm4_moe_lite": deepseek.describe,
    "deepseek_v2": deepseek.describe,
    "deepseek_v3": deepseek.describe,
    "dots1": dots.describe,
    "ernie4_5_moe": ernie.describe,
    "minimax_m2": minimax.describe,
    "cohere": cohere.describe,
    "cohere2": cohere.describe,
    "exaone4": exaone.describe,
    "stablelm": stablelm.describe,
    "starcoder2": starcoder.describe,
    "nemotron": nemotron.describe,
}


def describe(config: Any) -> DecoderSpec:
    """What a ``transformers`` configuration says, or that of the text part of a model with eyes. Raises Undescribed,
    with the reason, where it says more than a :class:`DecoderSpec` can."""
    text = config.get_text_config()
    family = FAMILIES.get(getattr(text, "model_type", ""))
    if family is None:
        raise Undescribed("no file describes the family")
    if getattr(config, "quantization_config", None) or getattr(text, "quantization_config", None):
        raise Undescribed("its weights are quantised")
    return family(text)
