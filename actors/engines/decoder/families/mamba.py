"""Bamba: Mamba 2, and every few layers attention."""

from __future__ import annotations

import math
from typing import Any

from actors.engines.decoder.families.parts import (
    Undescribed,
    attention,
    decoder,
    mlp,
    rotation,
    weight,
)
from actors.engines.decoder.spec import SCAN, DecoderSpec, Layer, Norms, Recurrent

FEED_FORWARD = ("feed_forward.gate_proj", "feed_forward.up_proj")


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        dense = mlp(config, index, FEED_FORWARD, "feed_forward.down_proj")
        norms = Norms(weight(index, "input_layernorm"), weight(index, "pre_ff_layernorm"))
        if config.layer_types[index] == "linear_attention":
            return Layer(scan(config, index), dense, norms)
        return Layer(attention(config, index, turning), dense, norms)

    return decoder(config, layer, final_norm="model.final_layernorm.weight")


def scan(config: Any, layer: int) -> Recurrent:
    """The Mamba 2 of a layer."""
    if tuple(config.time_step_limit or ()) not in ((), (0.0, math.inf)):
        raise Undescribed("its time steps are limited, in prompts alone")
    part = f"model.layers.{layer}.mamba"
    heads, values, groups = config.mamba_n_heads, config.mamba_d_head, config.mamba_n_groups
    return Recurrent(
        SCAN,
        *(heads, groups, config.mamba_d_state, values, config.mamba_d_conv),
        (f"{part}.in_proj.weight",),
        f"{part}.conv1d.weight",
        f"{part}.out_proj.weight",
        decay=f"{part}.A_log",
        step=f"{part}.dt_bias",
        skip=f"{part}.D",
        norm=f"{part}.norm.weight",
    )
