"""Families with experts in most layers, and attention of Llama's kind: Mixtral, and what others do otherwise."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import (
    Undescribed,
    attention,
    before,
    decoder,
    experts,
    head_norms,
    mlp,
    ranked,
    rotation,
    shared_mlp,
    weight,
)
from actors.engines.decoder.spec import CLAMPED_SWIGLU, DecoderSpec, Experts, Layer, Mlp, Routing


def mixtral(config: Any) -> DecoderSpec:
    turning = rotation(config)
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        return Layer(attention(config, index, turning), experts(config, index, counts), before(index))

    return decoder(config, layer)


def minimax(config: Any) -> DecoderSpec:
    """MiniMax M2: norms of all heads together, partial rotations, and a choice by a sigmoid with a correction."""
    turning = rotation(config, partial=True)
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        routing = Routing(sigmoid=True, correction=f"model.layers.{index}.mlp.e_score_correction_bias")
        own = attention(config, index, turning, norms=head_norms(index, whole=True))
        return Layer(own, experts(config, index, counts, routing=routing), before(index))

    return decoder(config, layer)


def olmoe(config: Any) -> DecoderSpec:
    """Norms of all heads together."""
    if config.clip_qkv is not None:
        raise Undescribed("it clips queries, keys and values")
    turning = rotation(config)
    counts = (config.num_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, norms=head_norms(index, whole=True))
        routing = Routing(divided=config.norm_topk_prob)
        return Layer(own, experts(config, index, counts, routing=routing), before(index))

    return decoder(config, layer)


def dots(config: Any) -> DecoderSpec:
    """dots.llm1, and GLM 4.5 to 4.7: norms of heads, and DeepSeek V3's choice behind a few dense layers."""
    turning = rotation(config, partial=config.model_type == "glm4_moe")
    normed = getattr(config, "use_qk_norm", True)

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, norms=head_norms(index) if normed else None)
        if index < config.first_k_dense_replace:
            return Layer(own, mlp(config, index), before(index))
        return Layer(own, ranked(config, index, config.n_routed_experts), before(index))

    return decoder(config, layer)


def ernie(config: Any) -> DecoderSpec:
    """ERNIE 4.5: neighbours are turned, and experts are in every n-th layer, chosen with a correction."""
    turning, every = rotation(config, neighbours=True), config.moe_layer_interval
    inner, beside = config.moe_intermediate_size, config.moe_num_shared_experts
    with_experts = range(config.moe_layer_start_index, config.moe_layer_end_index + 1)

    def feed(index: int) -> Mlp | Experts:
        if index not in with_experts or (index + 1) % every:
            return mlp(config, index)
        return experts(
            config,
            index,
            (config.moe_num_experts, config.moe_k, inner),
            routing=Routing(correction=f"model.layers.{index}.mlp.gate.moe_statics.e_score_correction_bias"),
            shared=shared_mlp(config, index, "mlp.shared_experts", inner * beside) if beside else None,
        )

    return decoder(config, lambda index: Layer(attention(config, index, turning), feed(index), before(index)))


def gpt_oss(config: Any) -> DecoderSpec:
    """Sinks, every other layer with a window, and experts with biases and a clamped activation."""
    if (getattr(config, "swiglu_alpha", 1.702), getattr(config, "swiglu_limit", 7.0)) != (1.702, 7.0):  # since 5.23
        raise Undescribed("its activation is clamped at other numbers")
    turning = rotation(config)
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, sinks=f"model.layers.{index}.self_attn.sinks")
        names: dict[str, Any] = {"activation": CLAMPED_SWIGLU, "router": weight(index, "mlp.router")}
        return Layer(own, experts(config, index, counts, transposed=True, woven=True, **names), before(index))

    return decoder(config, layer)


def qwen(config: Any) -> DecoderSpec:
    """Qwen 3 with norms of heads, Qwen 2 with a shared expert behind a gate."""
    turning, second = rotation(config), config.model_type == "qwen2_moe"

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, norms=None if second else head_norms(index))
        return Layer(own, qwen_mlp(config, index, second), before(index))

    return decoder(config, layer)


def qwen_mlp(config: Any, layer: int, shared: bool) -> Mlp | Experts:
    """Of a layer, which may be dense. ``shared``: there is an expert for every row behind a gate."""
    sparse, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or ()
    if not getattr(config, "num_experts", 0) or layer in dense or (layer + 1) % sparse:
        return mlp(config, layer)
    beside: dict[str, Any] = {}
    if shared:
        beside["shared"] = shared_mlp(config, layer, "mlp.shared_expert", config.shared_expert_intermediate_size)
        beside["shared_gate"] = weight(layer, "mlp.shared_expert_gate")
    counts = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
    routing = Routing(divided=getattr(config, "norm_topk_prob", True))
    return experts(config, layer, counts, routing=routing, **beside)
