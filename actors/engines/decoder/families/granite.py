"""Granite: Llama with multipliers; some with experts, and a shared one beside them."""

from __future__ import annotations

from typing import Any

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
from actors.engines.decoder.spec import DecoderSpec, Experts, Layer, Mlp, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)
    dense = config.model_type == "granite"

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turning, scale=config.attention_multiplier),
            mlp(config, index, config.hidden_act) if dense else _experts(config, index),
            before(index),
        )

    return decoder(
        config,
        layer,
        Norm(config.rms_norm_eps),
        embedding_scale=config.embedding_multiplier,
        residual_scale=config.residual_multiplier,
        logit_scale=1.0 / config.logits_scaling,
    )


def _experts(config: Any, layer: int) -> Experts:
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)
    shared = None
    if inner := getattr(config, "shared_intermediate_size", 0):
        up, down = weights(layer, "shared_mlp.input_linear"), weight(layer, "shared_mlp.output_linear")
        shared = Mlp(inner, activation(config.hidden_act), up, down)
    router = weight(layer, "block_sparse_moe.router")
    return experts(config, layer, counts, "block_sparse_moe", router=router, shared=shared)
