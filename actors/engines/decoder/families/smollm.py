"""SmolLM 3: some layers know no positions."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, before, decoder, mlp, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turning if config.no_rope_layers[index] else None),
            mlp(config, index, config.hidden_act),
            before(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))
