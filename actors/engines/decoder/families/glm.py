"""GLM 4: half of a head is turned, neighbours by neighbours. The later ones have norms behind attention and MLP too."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, before, decoder, mlp, rotation, weights
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
