"""Phi 3 and 4: queries, keys and values in one matrix, gate and up in another. Phi 1 and 2: parallel halves."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import (
    attention,
    before,
    decoder,
    head_norms,
    mlp,
    rotation,
    shared,
    weight,
    weights,
)
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        return Layer(
            attention(config, index, turning, qkv=weights(index, "self_attn.qkv_proj")),
            mlp(config, index, config.hidden_act, up=("mlp.gate_up_proj",)),
            before(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))


def describe_phi(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        norms = head_norms(index, "self_attn.q_layernorm", "self_attn.k_layernorm") if config.qk_layernorm else {}
        return Layer(
            attention(config, index, turning, out=weight(index, "self_attn.dense"), **norms),
            mlp(config, index, config.hidden_act, up=("mlp.fc1",), down="mlp.fc2"),
            shared(index),
            parallel=True,
        )

    norm = Norm(config.layer_norm_eps, centred=True)
    return decoder(config, layer, norm, final_norm="model.final_layernorm.weight")
