"""The families that the fused decoder knows, by the ``model_type`` of their configuration: a small function each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.engines.decoder.bounds import check_description
from actors.engines.decoder.families import (
    deepseek,
    dense,
    gemma,
    gpt,
    granite,
    lfm,
    llama4,
    mamba,
    mixtures,
    qwen_next,
)
from actors.engines.decoder.families.parts import Undescribed
from actors.engines.decoder.spec import DecoderSpec
from protocols.errors import ModelError

__all__ = ["FAMILIES", "Undescribed", "describe"]

FAMILIES: dict[str, Callable[[Any], DecoderSpec]] = {
    "llama": dense.llama,
    "mistral": dense.llama,
    "ministral": dense.llama,
    "ministral3": dense.ministral,
    "llama4_text": llama4.describe,
    "qwen2": dense.llama,
    "qwen3": dense.llama,
    "qwen2_vl_text": dense.llama,
    "qwen2_5_vl_text": dense.llama,
    "qwen3_vl_text": dense.llama,
    "qwen2_moe": mixtures.qwen,
    "qwen3_moe": mixtures.qwen,
    "qwen3_vl_moe_text": mixtures.qwen,
    "qwen3_next": qwen_next.describe,
    "qwen3_5_text": qwen_next.describe,
    "qwen3_5_moe_text": qwen_next.describe,
    "olmo_hybrid": qwen_next.olmo,
    "lfm2": lfm.describe,
    "lfm2_moe": lfm.describe,
    "lfm3": lfm.lfm3,
    "bamba": mamba.describe,
    "mamba": mamba.mamba,
    "falcon_mamba": mamba.mamba,
    "jamba": mamba.jamba,
    "mamba2": mamba.mamba2,
    "falcon_h1": mamba.falcon_h1,
    "nemotron_h": mamba.nemotron_h,
    "mixtral": mixtures.mixtral,
    "gpt_oss": mixtures.gpt_oss,
    "seed_oss": dense.llama,
    "cwm": dense.llama,
    "jais2": dense.jais,
    "arcee": dense.arcee,
    "ernie4_5": dense.neighbours,
    "helium": dense.neighbours,
    "gemma": gemma.describe,
    "gemma2": gemma.describe,
    "vaultgemma": gemma.describe,
    "gemma3_text": gemma.describe,
    "gemma4_text": gemma.describe_4,
    "gemma4_unified_text": gemma.describe_4,
    "gpt2": gpt.gpt2,
    "gpt_bigcode": gpt.gpt2,
    "gpt_neo": gpt.gpt_neo,
    "gptj": gpt.gptj,
    "gpt_neox": gpt.gpt_neox,
    "falcon": gpt.falcon,
    "opt": gpt.opt,
    "biogpt": gpt.opt,
    "persimmon": gpt.persimmon,
    "hunyuan_v1_dense": dense.hunyuan,
    "hunyuan_v1_moe": mixtures.hunyuan,
    "nanochat": dense.nanochat,
    "apertus": dense.apertus,
    "apertus1p5_text": dense.apertus,
    "phi": dense.phi,
    "phi3": dense.phi3,
    "phi4_multimodal": dense.phi3,
    "smollm3": dense.smollm,
    "granite": granite.describe,
    "granite_swa": granite.describe,
    "granitemoe_swa": granite.describe,
    "hyperclovax": granite.describe,
    "granitemoe": granite.describe,
    "granitemoeshared": granite.describe,
    "granitemoehybrid": granite.describe,
    "olmo": dense.olmo_1,
    "olmo2": dense.olmo,
    "olmo3": dense.olmo,
    "olmoe": mixtures.olmoe,
    "flex_olmo": mixtures.olmoe,
    "glm": dense.glm,
    "glm4": dense.glm,
    "glm4v_text": dense.glm,
    "glm4_moe": mixtures.dots,
    "glm4v_moe_text": mixtures.dots,
    "laguna": mixtures.laguna,
    "solar_open": mixtures.dots,
    "exaone_moe": mixtures.exaone,
    "kolibri1": mixtures.kolibri,
    "hy_v3": mixtures.hunyuan_3,
    "mellum": mixtures.qwen,
    "flint": mixtures.flint,
    "afmoe": mixtures.afmoe,
    "aria_text": mixtures.aria,
    "cohere2_moe": mixtures.cohere,
    "glm4_moe_lite": deepseek.describe,
    "deepseek_v2": deepseek.describe,
    "deepseek_v3": deepseek.describe,
    "youtu": deepseek.describe,
    "minicpm3": deepseek.minicpm,
    "axk1": deepseek.describe,
    "mistral4": deepseek.mistral,
    "dots1": mixtures.dots,
    "ernie4_5_moe": mixtures.ernie,
    "minimax_m2": mixtures.minimax,
    "cohere": dense.cohere,
    "cohere2": dense.cohere,
    "cohere_compass_text": dense.cohere,
    "exaone4": dense.exaone,
    "stablelm": dense.stablelm,
    "starcoder2": dense.starcoder,
    "nemotron": dense.nemotron,
}


def describe(config: Any) -> DecoderSpec:
    """What a ``transformers`` configuration says, or that of the text part of a model with eyes. Raises Undescribed,
    with the reason, where it says more than a :class:`DecoderSpec` can, and ModelError where it cannot be meant."""
    text = config.get_text_config()
    name = _described(getattr(text, "model_type", ""))
    if name is None:
        raise Undescribed(f"its model_type, {getattr(text, 'model_type', '')}, is not described")
    if getattr(config, "quantization_config", None) or getattr(text, "quantization_config", None):
        raise Undescribed("quantization_config is set")
    where = getattr(config, "_name_or_path", "") or f"the {text.model_type} model"
    try:
        spec = FAMILIES[name](text if name == text.model_type else _As(text, name))
    except ModelError:
        raise
    except Exception as error:  # a value of another type, a list that is too short, a division by zero
        raise ModelError(
            f"the configuration of {where} does not describe a model of its family: {type(error).__name__} "
            f"({error}); download it again"
        ) from None
    check_description(where, spec)
    return spec


def _described(model_type: str) -> str | None:
    """The described type with the same class of ``transformers``: the type itself, or the type that it is an alias
    of."""
    if model_type in FAMILIES or not model_type:
        return model_type or None
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    computes = CLASSES.get(model_type)
    return next((name for name in FAMILIES if computes is not None and CLASSES.get(name) == computes), None)


class _As:
    """A configuration as one of another type."""

    def __init__(self, config: Any, model_type: str) -> None:
        self._config, self.model_type = config, model_type

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)
