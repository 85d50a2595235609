"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, before, decoder, experts, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        return Layer(attention(config, index, turning), experts(config, index, counts), before(index))

    return decoder(config, layer, Norm(config.rms_norm_eps))
