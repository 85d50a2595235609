"""Nemotron 3 and 4: layer norms that multiply by one more than their weights, squared ReLU, no gate."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, before, decoder, mlp, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turning),
            mlp(config, index, config.hidden_act, up=("mlp.up_proj",)),
            before(index),
        )

    return decoder(config, layer, Norm(config.norm_eps, centred=True, offset=1.0))
