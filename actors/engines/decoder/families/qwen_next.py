"""Gated delta nets, and every few layers attention: with gates (Qwen3-Next, Qwen 3.5), or OLMo 2's (OLMo Hybrid)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actors.engines.decoder.families.mixtures import qwen_mlp
from actors.engines.decoder.families.parts import (
    attention,
    before,
    behind,
    decoder,
    head_norms,
    mlp,
    rotation,
    weights,
)
from actors.engines.decoder.spec import DecoderSpec, DeltaNet, Layer, Norm

WOVEN = "qwen3_next"
TILED = "tiled_value_heads"  # said of GGUF files, see ``DeltaNet.tiles``


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        if config.layer_types[index] == "linear_attention":
            return Layer(_delta(config, index), qwen_mlp(config, index, shared=True), before(index))
        own = attention(config, index, turning, gated=True, norms=head_norms(index))
        return Layer(own, qwen_mlp(config, index, shared=True), before(index))

    return decoder(config, layer, Norm(config.rms_norm_eps, offset=1.0))


def olmo(config: Any) -> DecoderSpec:
    """Norms stand before the halves of layers with a delta rule, and after those of the others."""
    turning = rotation(config) if (config.rope_parameters or {}).get("rope_theta") is not None else None

    def layer(index: int) -> Layer:
        if config.layer_types[index] == "linear_attention":
            names = tuple(f"{name}_proj" for name in "qkvgba")
            out, norm = weights(index, "linear_attn.o_proj", "linear_attn.o_norm")
            scale = 2.0 if config.linear_allow_neg_eigval else 1.0
            mixer = replace(_delta(config, index, names), out=out, norm=norm, eps=1e-5, rate_scale=scale)
            return Layer(mixer, mlp(config, index), before(index))
        own = attention(config, index, turning, window=0, norms=head_norms(index, whole=True))
        return Layer(own, mlp(config, index), behind(index))

    return decoder(config, layer)


def _delta(config: Any, layer: int, names: tuple[str, ...] = ()) -> DeltaNet:
    """``names``: of matrices of inputs."""
    if not names:
        kinds = ("qkvz", "ba") if config.model_type == WOVEN else ("qkv", "z", "b", "a")
        names = tuple(f"in_proj_{kind}" for kind in kinds)
    part = f"model.layers.{layer}.linear_attn"
    return DeltaNet(
        *(config.linear_num_value_heads, config.linear_num_key_heads),
        *(config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim),
        weights(layer, *(f"linear_attn.{name}" for name in names)),
        f"{part}.conv1d.weight",
        f"{part}.out_proj.weight",
        decay=f"{part}.A_log",
        step=f"{part}.dt_bias",
        norm=f"{part}.norm.weight",
        woven=config.model_type == WOVEN,
        tiles=getattr(config, TILED, False),
    )
