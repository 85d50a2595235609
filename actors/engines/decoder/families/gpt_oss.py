"""gpt-oss: sinks, every other layer with a window, and experts with biases and a clamped activation."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import Undescribed, attention, before, decoder, experts, rotation, weight
from actors.engines.decoder.spec import CLAMPED_SWIGLU, DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    if (config.swiglu_alpha, config.swiglu_limit) != (1.702, 7.0):
        raise Undescribed("its activation is clamped at other numbers")
    turning = rotation(config)
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        router = weight(index, "mlp.router")
        return Layer(
            attention(config, index, turning, sinks=f"model.layers.{index}.self_attn.sinks"),
            experts(config, index, counts, activation=CLAMPED_SWIGLU, router=router, transposed=True, woven=True),
            before(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))
