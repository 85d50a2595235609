"""dots.llm1: norms of heads, and DeepSeek V3's choice of experts behind a few dense layers."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, before, decoder, head_norms, mlp, ranked, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)

    def layer(index: int) -> Layer:
        dense = index < config.first_k_dense_replace
        return Layer(
            attention(config, index, turning, **head_norms(index)),
            mlp(config, index, config.hidden_act) if dense else ranked(config, index, config.n_routed_experts),
            before(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))
