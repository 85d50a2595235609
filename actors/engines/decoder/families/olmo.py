"""OLMo 2 and 3: norms behind attention and MLP alone, and of all heads' queries and keys together; OLMoE: experts."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import (
    Undescribed,
    attention,
    before,
    behind,
    decoder,
    experts,
    head_norms,
    kind_of,
    mlp,
    rotation,
)
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


def describe_experts(config: Any) -> DecoderSpec:
    if config.clip_qkv is not None:
        raise Undescribed("it clips queries, keys and values")
    turning = rotation(config)
    counts = (config.num_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turning, whole_norm=True, **head_norms(index)),
            experts(config, index, counts, divided=config.norm_topk_prob),
            before(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))
