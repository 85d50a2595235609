"""EXAONE 4: norms behind attention and MLP alone; with windows, whole layers know no positions."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, behind, decoder, head_norms, kind_of, mlp, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)

    def layer(index: int) -> Layer:
        turns = config.sliding_window is None or kind_of(config, index) == "sliding_attention"
        return Layer(
            attention(config, index, turning if turns else None, **head_norms(index)),
            mlp(config, index, config.hidden_act),
            behind(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))
