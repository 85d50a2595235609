"""StableLM: layer norms, and a quarter of each head turned."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import Undescribed, attention, before, decoder, mlp, rotation, shared
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    if config.qk_layernorm:
        raise Undescribed("every head has norms of its own")
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turning, window=0),
            mlp(config, index, config.hidden_act),
            shared(index) if config.use_parallel_residual else before(index),
            parallel=config.use_parallel_residual,
        )

    return decoder(config, layer, Norm(config.layer_norm_eps, centred=True))
