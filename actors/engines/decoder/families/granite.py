"""Granite: Llama with multipliers; some with experts, and a shared one beside them. Granite 4 has Mamba 2 as well, and
most of it no positions."""

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
from actors.engines.decoder.spec import DecoderSpec, Experts, Layer, Mlp


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config) if getattr(config, "position_embedding_type", "rope") == "rope" else None

    def layer(index: int) -> Layer:
        if _is_scan(config, index):
            return Layer(scan(config, index), _mlp(config, index), before(index))
        own = attention(config, index, turning, scale=config.attention_multiplier)
        return Layer(own, _mlp(config, index), before(index))

    return decoder(
        config,
        layer,
        embedding_scale=config.embedding_multiplier,
        residual_scale=config.residual_multiplier,
        logit_scale=1.0 / config.logits_scaling,
    )


def _is_scan(config: Any, layer: int) -> bool:
    return bool(config.model_type == "granitemoehybrid" and config.layer_types[layer] == "linear_attention")


def _mlp(config: Any, layer: int) -> Mlp | Experts:
    if config.model_type == "granite":
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
