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

# Model types by the function that describes them
_TYPES: dict[Callable[[Any], DecoderSpec], str] = {
    dense.llama: "llama mistral ministral qwen2 qwen3 qwen2_vl_text qwen2_5_vl_text qwen3_vl_text seed_oss cwm",
    dense.ministral: "ministral3",
    llama4.describe: "llama4_text",
    mixtures.qwen: "qwen2_moe qwen3_moe qwen3_vl_moe_text mellum",
    qwen_next.describe: "qwen3_next qwen3_5_text qwen3_5_moe_text",
    qwen_next.olmo: "olmo_hybrid",
    lfm.describe: "lfm2 lfm2_moe",
    lfm.lfm3: "lfm3",
    mamba.describe: "bamba",
    mamba.mamba: "mamba falcon_mamba",
    mamba.jamba: "jamba",
    mamba.mamba2: "mamba2",
    mamba.falcon_h1: "falcon_h1",
    mamba.nemotron_h: "nemotron_h",
    mixtures.mixtral: "mixtral",
    mixtures.gpt_oss: "gpt_oss",
    dense.jais: "jais2",
    dense.arcee: "arcee",
    dense.neighbours: "ernie4_5 helium",
    gemma.describe: "gemma gemma2 vaultgemma gemma3_text",
    gemma.describe_4: "gemma4_text gemma4_unified_text",
    gpt.gpt2: "gpt2 gpt_bigcode",
    gpt.gpt_neo: "gpt_neo",
    gpt.gptj: "gptj",
    gpt.gpt_neox: "gpt_neox",
    gpt.falcon: "falcon",
    gpt.opt: "opt biogpt",
    gpt.persimmon: "persimmon",
    dense.hunyuan: "hunyuan_v1_dense",
    mixtures.hunyuan: "hunyuan_v1_moe",
    dense.nanochat: "nanochat",
    dense.apertus: "apertus apertus1p5_text",
    dense.phi: "phi",
    dense.phi3: "phi3 phi4_multimodal",
    dense.smollm: "smollm3",
    granite.describe: "granite granite_swa granitemoe_swa hyperclovax granitemoe granitemoeshared granitemoehybrid",
    dense.olmo_1: "olmo",
    dense.olmo: "olmo2 olmo3",
    mixtures.olmoe: "olmoe flex_olmo",
    dense.glm: "glm glm4 glm4v_text",
    mixtures.dots: "glm4_moe glm4v_moe_text solar_open dots1",
    mixtures.laguna: "laguna",
    mixtures.exaone: "exaone_moe",
    mixtures.kolibri: "kolibri1",
    mixtures.hunyuan_3: "hy_v3",
    mixtures.flint: "flint",
    mixtures.afmoe: "afmoe",
    mixtures.aria: "aria_text",
    mixtures.cohere: "cohere2_moe",
    deepseek.describe: "glm4_moe_lite deepseek_v2 deepseek_v3 youtu axk1",
    deepseek.minicpm: "minicpm3",
    deepseek.mistral: "mistral4",
    mixtures.ernie: "ernie4_5_moe",
    mixtures.minimax: "minimax_m2",
    dense.cohere: "cohere cohere2 cohere_compass_text",
    dense.exaone: "exaone4",
    dense.stablelm: "stablelm",
    dense.starcoder: "starcoder2",
    dense.nemotron: "nemotron",
}
FAMILIES = {name: describes for describes, names in _TYPES.items() for name in names.split()}


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
