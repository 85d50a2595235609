"""Llama, and families that differ from it by windows, biases or norms of heads alone: Mistral, Qwen 2 and 3, Seed.

Ministral 3 stretches queries behind the positions of its training.

Qwen-VL turns three parts of a head by three positions, which are one and the same in a text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actors.engines.decoder.families.parts import GATE_UP, attention, before, decoder, head_norms, mlp, rotation
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm, QueryScale

NORMED = {"qwen3", "qwen3_vl_text"}


def describe(config: Any, neighbours: bool = False, up: tuple[str, ...] = GATE_UP) -> DecoderSpec:
    turning = rotation(config, neighbours=neighbours)

    def layer(index: int) -> Layer:
        norms = head_norms(index) if config.model_type in NORMED else {}
        return Layer(
            attention(config, index, turning, **norms),
            mlp(config, index, config.hidden_act, up),
            before(index),
        )

    return decoder(config, layer, Norm(config.rms_norm_eps))


def describe_ministral(config: Any) -> DecoderSpec:
    parameters = config.rope_parameters
    stretch = QueryScale(parameters.get("llama_4_scaling_beta") or 0.0, parameters["original_max_position_embeddings"])
    turning = replace(rotation(config), stretch=stretch)

    def layer(index: int) -> Layer:
        own = attention(config, index, turning)
        return Layer(own, mlp(config, index, config.hidden_act), before(index))

    return decoder(config, layer, Norm(config.rms_norm_eps))


def describe_neighbours(config: Any) -> DecoderSpec:
    """Ernie 4.5 and Helium turn neighbours."""
    return describe(config, neighbours=True)


def describe_arcee(config: Any) -> DecoderSpec:
    """No gate."""
    return describe(config, up=("mlp.up_proj",))
