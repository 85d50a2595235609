"""Command R: attention and MLP of one layer norm, side by side. The second version knows positions in windows only."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, decoder, head_norms, kind_of, mlp, rotation, shared
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, neighbours=True)
    second = config.model_type == "cohere2"

    def layer(index: int) -> Layer:
        norms = head_norms(index) if getattr(config, "use_qk_norm", False) else {}
        turns = not second or kind_of(config, index) == "sliding_attention"
        return Layer(
            attention(config, index, turning if turns else None, **norms),
            mlp(config, index, config.hidden_act),
            shared(index),
            parallel=True,
        )

    norm = Norm(config.layer_norm_eps, centred=True)
    return decoder(config, layer, norm, logit_scale=config.logit_scale)
