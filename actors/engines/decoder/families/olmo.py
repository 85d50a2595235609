"""OLMo 2 and 3: norms behind attention and MLP alone, and of all heads' queries and keys together."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, behind, decoder, head_norms, kind_of, mlp, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    kinds = {kind_of(config, index) for index in range(config.num_hidden_layers)}
    turnings = {kind: rotation(config, kind) for kind in kinds}

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turnings[kind_of(config, index)], whole_norm=True, **head_norms(index)),
            mlp(config, index, config.hidden_act),
            behind(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))
