"""StarCoder 2: layer norms, biases everywhere, and no gate."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, before, decoder, mlp, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turning),
            mlp(config, index, config.hidden_act, up=("mlp.c_fc",), down="mlp.c_proj"),
            before(index),
        )

    return decoder(config, layer, Norm(config.norm_epsilon, centred=True))
