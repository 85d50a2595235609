"""MiniMax M2: norms of all heads together, partial rotations, and experts chosen by a sigmoid with a correction."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import attention, before, decoder, experts, head_norms, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True)
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        correction = f"model.layers.{index}.mlp.e_score_correction_bias"
        return Layer(
            attention(config, index, turning, whole_norm=True, **head_norms(index)),
            experts(config, index, counts, sigmoid=True, correction=correction),
            before(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))
