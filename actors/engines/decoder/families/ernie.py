"""ERNIE 4.5: neighbours are turned; some with experts in every n-th layer, chosen with a correction."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import (
    attention,
    before,
    decoder,
    experts,
    mlp,
    rotation,
    shared_mlp,
)
from actors.engines.decoder.spec import DecoderSpec, Experts, Layer, Mlp, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, neighbours=True)

    def layer(index: int) -> Layer:
        return Layer(attention(config, index, turning), _mlp(config, index), before(index))

    return decoder(config, layer, Norm(config.rms_norm_eps))


def _mlp(config: Any, layer: int) -> Mlp | Experts:
    inside = config.moe_layer_start_index <= layer <= config.moe_layer_end_index
    if not inside or (layer + 1) % config.moe_layer_interval:
        return mlp(config, layer, config.hidden_act)
    inner, shared = config.moe_intermediate_size, config.moe_num_shared_experts
    return experts(
        config,
        layer,
        (config.moe_num_experts, config.moe_k, inner),
        correction=f"model.layers.{layer}.mlp.gate.moe_statics.e_score_correction_bias",
        shared=shared_mlp(config, layer, "mlp.shared_experts", inner * shared) if shared else None,
    )
