"""Granite: Llama with multipliers."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, before, decoder, mlp, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turning, scale=config.attention_multiplier),
            mlp(config, index, config.hidden_act),
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
