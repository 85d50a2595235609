"""LFM 2 and 3: short convolutions between gates, and every few layers attention."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.gemma import rotation_4
from actors.engines.decoder.families.parts import (
    QKV,
    Undescribed,
    attention,
    decoder,
    head_norms,
    rotation,
    weight,
    weights,
)
from actors.engines.decoder.spec import (
    SILU,
    DecoderSpec,
    Experts,
    Layer,
    Mlp,
    Norm,
    Norms,
    Routing,
    ShortConvolution,
)

DENSE = "lfm2"


def lfm3(config: Any) -> DecoderSpec:
    """Windows, norms after both halves, and a gate for each head."""
    parts = ("operator_norm", "ffn_norm", "post_operator_norm", "post_ffn_norm")[: 4 if config.use_sandwich_norm else 2]

    def layer(index: int) -> Layer:
        kind, norms = config.layer_types[index], Norms(*weights(index, *parts))
        feed = Mlp(config.intermediate_size, SILU, *_feed_forward(index))
        if kind == "conv":
            return Layer(_convolution(config, index), feed, norms)
        gated = config.use_attention_gate
        names = weights(index, *QKV, *(("self_attn.g_proj",) if gated else ()))
        turning = rotation_4(config.rope_parameters[kind], config.head_dim)
        own = attention(config, index, turning, qkv=names, norms=head_norms(index), gated=gated, head_gates=gated)
        return Layer(own, feed, norms)

    return decoder(config, layer, Norm(config.norm_eps), final_norm="model.embedding_norm.weight")


def _feed_forward(layer: int) -> tuple[tuple[str, ...], str]:
    return weights(layer, "feed_forward.w1", "feed_forward.w3"), weight(layer, "feed_forward.w2")


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)

    def layer(index: int) -> Layer:
        norms = Norms(weight(index, "operator_norm"), weight(index, "ffn_norm"))
        if config.layer_types[index] == "conv":
            return Layer(_convolution(config, index), _mlp(config, index), norms)
        own_norms = head_norms(index, "self_attn.q_layernorm", "self_attn.k_layernorm")
        own = attention(config, index, turning, out=weight(index, "self_attn.out_proj"), norms=own_norms)
        return Layer(own, _mlp(config, index), norms)

    return decoder(config, layer, Norm(config.norm_eps), final_norm="model.embedding_norm.weight")


def _convolution(config: Any, layer: int) -> ShortConvolution:
    part, hidden = f"model.layers.{layer}.conv", config.hidden_size
    if config.conv_bias:
        raise Undescribed("conv_bias is set")
    names = (f"{part}.conv.weight", f"{part}.out_proj.weight")
    return ShortConvolution(1, 0, 0, hidden, config.conv_L_cache, (f"{part}.in_proj.weight",), *names)


def _mlp(config: Any, layer: int) -> Mlp | Experts:
    if config.model_type == DENSE or layer < config.num_dense_layers:
        return Mlp(_inner(config), SILU, *_feed_forward(layer))
    part = f"model.layers.{layer}.feed_forward"
    return Experts(
        *(config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size, SILU),
        weight(layer, "feed_forward.gate"),
        f"{part}.experts.gate_up_proj",
        f"{part}.experts.down_proj",
        routing=Routing(
            sigmoid=True,
            correction=f"{part}.expert_bias" if config.use_expert_bias else None,
            divided=config.norm_topk_prob,
            scale=config.routed_scaling_factor,
        ),
    )


def _inner(config: Any) -> int:
    """As ``Lfm2MLP`` works it out."""
    inner = int(config.intermediate_size)
    if config.model_type != DENSE or not config.block_auto_adjust_ff_dim:
        return inner
    inner = int(2 * inner / 3)
    if config.block_ffn_dim_multiplier is None:
        return inner
    step = config.block_multiple_of
    return int(-(-int(config.block_ffn_dim_multiplier * inner) // step) * step)
