"""GLM 4: half of a head is turned, neighbours by neighbours. The later ones have norms behind attention and MLP too.

GLM 4.5 to 4.7 have experts behind a few dense layers, and turn halves.
"""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import (
    attention,
    before,
    decoder,
    head_norms,
    mlp,
    ranked,
    rotation,
    weights,
)
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm, Norms


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True, neighbours=True)

    def layer(index: int) -> Layer:
        norms = before(index)
        if config.model_type == "glm4":
            own = weights(index, "post_self_attn_layernorm", "post_mlp_layernorm")
            norms = Norms(norms.attention, norms.mlp, *own)
        return Layer(
            attention(config, index, turning),
            mlp(config, index, config.hidden_act, up=("mlp.gate_up_proj",)),
            norms,
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))


def describe_experts(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        dense = index < config.first_k_dense_replace
        return Layer(
            attention(config, index, turning, **(head_norms(index) if config.use_qk_norm else {})),
            mlp(config, index, config.hidden_act) if dense else ranked(config, index, config.n_routed_experts),
            before(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))
