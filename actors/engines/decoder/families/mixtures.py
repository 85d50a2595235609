"""Families with experts in most layers, and attention of Llama's kind: Mixtral, and what others do otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actors.engines.decoder.families.parts import (
    QKV,
    Undescribed,
    attention,
    before,
    behind,
    decoder,
    experts,
    head_norms,
    hunyuan_rotation,
    kind_of,
    late_norms,
    mlp,
    ranked,
    rotation,
    shared,
    shared_mlp,
    weight,
    weights,
)
from actors.engines.decoder.spec import CLAMPED_SWIGLU, SILU, DecoderSpec, Experts, Layer, Mlp, Norm, Norms, Routing


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
    """Norms of all heads together; FlexOlmo has those of layers behind both halves."""
    if getattr(config, "clip_qkv", None) is not None:
        raise Undescribed("clip_qkv is set")
    turning = rotation(config)
    counts = (config.num_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, norms=head_norms(index, whole=True))
        routing = Routing(divided=config.norm_topk_prob)
        norms = behind(index) if config.model_type == "flex_olmo" else before(index)
        return Layer(own, experts(config, index, counts, routing=routing), norms)

    return decoder(config, layer)


def dots(config: Any) -> DecoderSpec:
    """dots.llm1, and GLM 4.5 to 4.7: norms of heads, and DeepSeek V3's choice behind a few dense layers. Solar Open has
    neither such norms nor dense layers."""
    turning, solar = rotation(config, partial=config.model_type != "dots1"), config.model_type == "solar_open"
    normed = not solar and getattr(config, "use_qk_norm", config.model_type != "glm4v_moe_text")

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, norms=head_norms(index) if normed else None)
        if not solar and index < config.first_k_dense_replace:
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
        raise Undescribed("swiglu_alpha and swiglu_limit are not 1.702 and 7")
    turning = rotation(config)
    counts = (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size)

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, sinks=f"model.layers.{index}.self_attn.sinks")
        names: dict[str, Any] = {"activation": CLAMPED_SWIGLU, "router": weight(index, "mlp.router")}
        return Layer(own, experts(config, index, counts, transposed=True, woven=True, **names), before(index))

    return decoder(config, layer)


def exaone(config: Any) -> DecoderSpec:
    """K-EXAONE: as EXAONE 4 attends, and DeepSeek V3's choice behind a few dense layers."""
    turning, shared_count = rotation(config), config.num_shared_experts

    def layer(index: int) -> Layer:
        turns = config.sliding_window is None or kind_of(config, index) == "sliding_attention"
        own = attention(config, index, turning if turns else None, norms=head_norms(index))
        dense = config.mlp_layer_types[index] == "dense"
        feed = mlp(config, index) if dense else ranked(config, index, config.num_experts, shared_count)
        return Layer(own, feed, before(index))

    return decoder(config, layer)


def kolibri(config: Any) -> DecoderSpec:
    """As EXAONE 4 attends, norms around both halves, and a choice by scores before their sigmoid."""
    turning = rotation(config)
    counts = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)

    def layer(index: int) -> Layer:
        turns = config.sliding_window is None or kind_of(config, index) == "sliding_attention"
        correction = f"model.layers.{index}.mlp.gate.e_score_correction_bias"
        routing = Routing(sigmoid=True, raw=True, correction=correction, divided=config.norm_topk_prob)
        beside = shared_mlp(config, index, "mlp.shared_experts", config.shared_expert_intermediate_size)
        norms = before(index)
        return Layer(
            attention(config, index, turning if turns else None, norms=head_norms(index)),
            experts(config, index, counts, routing=routing, shared=beside),
            Norms(norms.attention, norms.mlp, *weights(index, "post_self_attn_layernorm", "post_mlp_layernorm")),
        )

    return decoder(config, layer)


def hunyuan_3(config: Any) -> DecoderSpec:
    """Hy3: norms of heads, and a choice by a sigmoid with a correction behind a dense layer."""
    turning, inner = rotation(config), config.moe_intermediate_size

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, norms=head_norms(index))
        if config.mlp_layer_types[index] == "dense":
            return Layer(own, mlp(config, index), before(index))
        correction = f"model.layers.{index}.mlp.e_score_correction_bias"
        chosen = experts(
            config,
            index,
            (config.num_experts, config.num_experts_per_tok, inner),
            routing=Routing(sigmoid=True, correction=correction, scale=config.router_scaling_factor),
            shared=shared_mlp(config, index, "mlp.shared_experts", inner * config.num_shared_experts),
        )
        return Layer(own, chosen, before(index))

    return decoder(config, layer)


def hunyuan(config: Any) -> DecoderSpec:
    """Hunyuan's first mixture: heads are normed behind their rotation, and an MLP stands beside experts."""
    turning = hunyuan_rotation(config)

    def of_layer(said: Any, index: int) -> int:
        return int(said if isinstance(said, int) else said[index])

    def layer(index: int) -> Layer:
        counts = (of_layer(config.num_experts, index), of_layer(config.moe_topk, index), config.intermediate_size)
        beside = shared_mlp(config, index, "mlp.shared_mlp", config.intermediate_size)
        chosen = experts(config, index, counts, router=weight(index, "mlp.gate.wg"), shared=beside)
        return Layer(attention(config, index, turning, norms=late_norms(index)), chosen, before(index))

    return decoder(config, layer)


def flint(config: Any) -> DecoderSpec:
    """Sinks, positions in windows alone, and shares that are sigmoids."""
    turning = rotation(config)
    counts = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)

    def layer(index: int) -> Layer:
        turns, sinks = kind_of(config, index) == "sliding_attention", f"model.layers.{index}.self_attn.sinks"
        own = attention(config, index, turning if turns else None, norms=head_norms(index), sinks=sinks)
        if index in config.mlp_only_layers or (index + 1) % config.decoder_sparse_step:
            return Layer(own, mlp(config, index), before(index))
        routing = Routing(sigmoid=True, divided=config.norm_topk_prob)
        beside = shared_mlp(config, index, "mlp.shared_expert", config.shared_expert_intermediate_size)
        return Layer(own, experts(config, index, counts, routing=routing, shared=beside), before(index))

    return decoder(config, layer)


def afmoe(config: Any) -> DecoderSpec:
    """Trinity: gates in a matrix of their own, positions in windows alone, norms around both halves."""
    turning, inner = rotation(config), config.moe_intermediate_size
    counts = (config.num_experts, config.num_experts_per_tok, inner)

    def feed(index: int) -> Mlp | Experts:
        if index < config.num_dense_layers:
            return mlp(config, index)
        routing = Routing(sigmoid=True, correction=f"model.layers.{index}.mlp.expert_bias", scale=config.route_scale)
        beside = shared_mlp(config, index, "mlp.shared_experts", inner * config.num_shared_experts)
        router = weight(index, "mlp.router.gate")
        return experts(config, index, counts, router=router, routing=routing, shared=beside)

    def layer(index: int) -> Layer:
        names = weights(index, *QKV, "self_attn.gate_proj")
        turns = kind_of(config, index) == "sliding_attention"
        own = attention(config, index, turning if turns else None, norms=head_norms(index), qkv=names, gated=True)
        norms = ("input_layernorm", "pre_mlp_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
        return Layer(own, feed(index), Norms(*weights(index, *norms)))

    return decoder(config, layer, embedding_scale=config.hidden_size**0.5 if config.mup_enabled else 1.0)


def laguna(config: Any) -> DecoderSpec:
    """Laguna: each layer has a number of heads of its own, and a gate for each."""
    if config.gating not in (True, "per-head"):
        raise Undescribed(f"its gates are {config.gating!r}, where one for each head is known")
    if config.moe_router_logit_softcapping:
        raise Undescribed("it caps what its router gives")
    counts = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)

    def layer(index: int) -> Layer:
        own = attention(
            config,
            index,
            rotation(config, kind_of(config, index), partial=True),
            heads=config.num_attention_heads_per_layer[index],
            norms=head_norms(index),
            qkv=weights(index, *QKV, "self_attn.g_proj"),
            gated=True,
            head_gates=True,
            soft_gates=True,
        )
        if config.mlp_layer_types[index] == "dense":
            return Layer(own, mlp(config, index), before(index))
        correction = f"model.layers.{index}.mlp.gate.e_score_correction_bias"
        routing = Routing(sigmoid=True, correction=correction, scale=config.moe_routed_scaling_factor)
        beside = shared_mlp(config, index, "mlp.shared_experts", config.shared_expert_intermediate_size)
        return Layer(own, experts(config, index, counts, routing=routing, shared=beside), before(index))

    return decoder(config, layer)


def aria(config: Any) -> DecoderSpec:
    """Experts of transposed matrices, whose activation is SiLU."""
    turning, inner = rotation(config), config.intermediate_size
    counts = (config.moe_num_experts, config.moe_topk, inner)

    def layer(index: int) -> Layer:
        beside = shared_mlp(config, index, "mlp.shared_experts", inner * config.moe_num_shared_experts)
        names: dict[str, Any] = {"activation": SILU, "router": weight(index, "mlp.router"), "shared": beside}
        chosen = experts(config, index, counts, transposed=True, **names)
        return Layer(attention(config, index, turning), chosen, before(index))

    return decoder(config, layer)


def cohere(config: Any) -> DecoderSpec:
    """Command A with experts: halves side by side, and positions in windows or in dense layers before them."""
    averaged = config.num_shared_experts and config.shared_expert_combination_strategy == "average"
    scale = 0.5 if averaged else 1.0
    sigmoid, inner = config.expert_selection_fn == "sigmoid", config.intermediate_size
    counts = (config.num_experts, config.num_experts_per_tok, inner)
    turning, divided = rotation(config, neighbours=True), not sigmoid or config.norm_topk_prob

    def layer(index: int) -> Layer:
        dense = config.mlp_layer_types[index] == "dense"
        turns = kind_of(config, index) == "sliding_attention"
        turns = turns or (dense and config.prefix_dense_sliding_window_pattern == 1)
        own = attention(config, index, turning if turns else None)
        if dense:
            feed: Mlp | Experts = replace(mlp(config, index), inner=config.prefix_dense_intermediate_size)
        else:
            count = config.num_shared_experts
            beside = shared_mlp(config, index, "mlp.shared_experts", inner * count) if count else None
            routing = Routing(sigmoid=sigmoid, divided=divided, scale=scale)
            feed = experts(config, index, counts, routing=routing, shared=beside, shared_scale=scale)
        return Layer(own, feed, shared(index), parallel=True)

    centred = config.rms_norm_eps is None
    norm = Norm(config.layer_norm_eps if centred else config.rms_norm_eps, centred)
    return decoder(config, layer, norm, logit_scale=config.logit_scale)


def qwen(config: Any) -> DecoderSpec:
    """Qwen 3 with norms of heads, Qwen 2 with a shared expert behind a gate; Mellum with windows."""
    second, mellum = config.model_type == "qwen2_moe", config.model_type == "mellum"

    def layer(index: int) -> Layer:
        turning = rotation(config, kind_of(config, index), partial=mellum)
        own = attention(config, index, turning, norms=None if second else head_norms(index))
        return Layer(own, qwen_mlp(config, index, second), before(index))

    return decoder(config, layer)


def qwen_mlp(config: Any, layer: int, shared: bool) -> Mlp | Experts:
    """The MLP of a layer, which may be dense. ``shared``: there is an expert for every row behind a gate."""
    sparse, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or ()
    kinds = getattr(config, "mlp_layer_types", None) or ()
    if not getattr(config, "num_experts", 0) or layer in dense or (layer + 1) % sparse or "dense" in kinds[layer:][:1]:
        return mlp(config, layer)
    beside: dict[str, Any] = {}
    if shared:
        beside["shared"] = shared_mlp(config, layer, "mlp.shared_expert", config.shared_expert_intermediate_size)
        beside["shared_gate"] = weight(layer, "mlp.shared_expert_gate")
    counts = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
    routing = Routing(divided=getattr(config, "norm_topk_prob", True))
    return experts(config, layer, counts, routing=routing, **beside)
