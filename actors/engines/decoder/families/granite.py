"""Granite: Llama with multipliers; some with experts and a shared expert. Granite 4 has Mamba 2 as well, and most of it
no positions; some have windows and sinks. HyperCLOVA X has norms after both halves, too."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.mamba import scan
from actors.engines.decoder.families.parts import (
    activation,
    attention,
    before,
    decoder,
    experts,
    mlp,
    rotation,
    weight,
    weights,
)
from actors.engines.decoder.spec import DecoderSpec, Experts, Layer, Mlp, Norms, Rotation


def describe(config: Any) -> DecoderSpec:
    scales = (config.residual_multiplier,) * 2
    windowed, peri = config.model_type.endswith("_swa"), getattr(config, "use_post_norm", False)

    def layer(index: int) -> Layer:
        norms = before(index)
        if peri:
            norms = Norms(norms.attention, norms.mlp, *weights(index, "post_norm1", "post_norm2"))
        if _is_scan(config, index):
            return Layer(scan(config, index), _mlp(config, index), norms, scales=scales)
        own = attention(
            config,
            index,
            _rotation(config, index),
            scale=config.attention_multiplier,
            sinks=f"model.layers.{index}.self_attn.sinks" if windowed else None,
        )
        return Layer(own, _mlp(config, index), norms, scales=scales)

    scaling = config.logits_scaling
    return decoder(
        config,
        layer,
        embedding_scale=config.embedding_multiplier,
        logit_scale=scaling if config.model_type == "hyperclovax" else 1.0 / scaling,
    )


def _rotation(config: Any, layer: int) -> Rotation | None:
    """Layers may have bases of their own, of which 0 is none."""
    bases = getattr(config, "layer_rope_theta", None)
    if getattr(config, "position_embedding_type", "rope") != "rope" or (bases and not bases[layer]):
        return None
    return rotation(config, parameters=config.rope_parameters | {"rope_theta": bases[layer]} if bases else None)


def _is_scan(config: Any, layer: int) -> bool:
    return bool(config.model_type == "granitemoehybrid" and config.layer_types[layer] == "linear_attention")


def _mlp(config: Any, layer: int) -> Mlp | Experts:
    if getattr(config, "num_local_experts", None) is None:
        return mlp(config, layer)
    shared = None
    if inner := getattr(config, "shared_intermediate_size", 0):
        up, down = weights(layer, "shared_mlp.input_linear"), weight(layer, "shared_mlp.output_linear")
        shared = Mlp(inner, activation(config.hidden_act), up, down)
    if not config.num_local_experts and shared is not None:
        return shared
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)
    router = weight(layer, "block_sparse_moe.router")
    return experts(config, layer, counts, "block_sparse_moe", router=router, shared=shared)
