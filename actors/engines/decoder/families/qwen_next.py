"""Qwen3-Next and Qwen 3.5: gated delta nets, and every few layers attention with gates."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.mixtures import qwen_mlp
from actors.engines.decoder.families.parts import attention, before, decoder, head_norms, rotation, weights
from actors.engines.decoder.spec import DELTA, DecoderSpec, Layer, Norm, Recurrent

WOVEN = "qwen3_next"
TILED = "tiled_value_heads"  # said of GGUF files, see ``Recurrent.tiled``


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        if config.layer_types[index] == "linear_attention":
            return Layer(_delta(config, index), qwen_mlp(config, index, shared=True), before(index))
        own = attention(config, index, turning, gated=True, norms=head_norms(index))
        return Layer(own, qwen_mlp(config, index, shared=True), before(index))

    return decoder(config, layer, Norm(config.rms_norm_eps, offset=1.0))


def _delta(config: Any, layer: int) -> Recurrent:
    names = ("qkvz", "ba") if config.model_type == WOVEN else ("qkv", "z", "b", "a")
    part = f"model.layers.{layer}.linear_attn"
    return Recurrent(
        DELTA,
        *(config.linear_num_value_heads, config.linear_num_key_heads),
        *(config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim),
        weights(layer, *(f"linear_attn.in_proj_{name}" for name in names)),
        f"{part}.conv1d.weight",
        f"{part}.out_proj.weight",
        decay=f"{part}.A_log",
        step=f"{part}.dt_bias",
        norm=f"{part}.norm.weight",
        woven=config.model_type == WOVEN,
        tiled=getattr(config, TILED, False),
    )
