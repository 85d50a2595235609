"""Families with experts in most layers, and attention of Llama's kind: Mixtral, and what others do otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actors.engines.decoder.families.parts import (
    QKV,
    Undescribed,
    around,
    before,
    behind,
    decoder,
    experts,
    head_norms,
    hunyuan_rotation,
    kind_of,
    late_norms,
    layers,
    mlp,
    ranked,
    rotation,
    shared,
    shared_mlp,
    weight,
    weights,
    windows_turn,
)
from actors.engines.decoder.spec import (
    CLAMPED_SWIGLU,
    SILU,
    DecoderSpec,
    Experts,
    HeadNorms,
    Mlp,
    Norm,
    Norms,
    Rotation,
    Routing,
)


def mixtral(config: Any) -> DecoderSpec:
    counts = _counts(config, "num_local_experts", inner="intermediate_size")
    return decoder(config, layers(config, rotation(config), lambda index: experts(config, index, counts)))


def minimax(config: Any) -> DecoderSpec:
    """MiniMax M2: norms of all heads together, partial rotations, and a choice by a sigmoid with a correction."""
    counts = _counts(config, "num_local_experts", inner="intermediate_size")

    def feed(index: int) -> Experts:
        routing = Routing(sigmoid=True, correction=f"model.layers.{index}.mlp.e_score_correction_bias")
        return experts(config, index, counts, routing=routing)

    return decoder(config, layers(config, rotation(config, partial=True), feed, norms=_norms_together))


def olmoe(config: Any) -> DecoderSpec:
    """Norms of all heads together; FlexOlmo has those of layers after both halves."""
    if getattr(config, "clip_qkv", None) is not None:
        raise Undescribed("clip_qkv is set")
    counts, routing = _counts(config, inner="intermediate_size"), Routing(divided=config.norm_topk_prob)

    def feed(index: int) -> Experts:
        return experts(config, index, counts, routing=routing)

    norms = behind if config.model_type == "flex_olmo" else before
    return decoder(config, layers(config, rotation(config), feed, norms, norms=_norms_together))


def dots(config: Any) -> DecoderSpec:
    """dots.llm1, and GLM 4.5 to 4.7: norms of heads, and DeepSeek V3's choice after a few dense layers. Solar Open has
    neither such norms nor dense layers."""
    turning, solar = rotation(config, partial=config.model_type != "dots1"), config.model_type == "solar_open"
    normed = not solar and getattr(config, "use_qk_norm", config.model_type != "glm4v_moe_text")
    dense = 0 if solar else config.first_k_dense_replace

    def feed(index: int) -> Mlp | Experts:
        return mlp(config, index) if index < dense else ranked(config, index, config.n_routed_experts)

    return decoder(config, layers(config, turning, feed, norms=head_norms if normed else None))


def ernie(config: Any) -> DecoderSpec:
    """ERNIE 4.5: neighbours are turned, and experts are in every n-th layer, chosen with a correction."""
    every, beside = config.moe_layer_interval, config.moe_num_shared_experts
    counts = _counts(config, "moe_num_experts", "moe_k")
    with_experts = range(config.moe_layer_start_index, config.moe_layer_end_index + 1)

    def feed(index: int) -> Mlp | Experts:
        if index not in with_experts or (index + 1) % every:
            return mlp(config, index)
        routing = Routing(correction=f"model.layers.{index}.mlp.gate.moe_statics.e_score_correction_bias")
        own = shared_mlp(config, index, "mlp.shared_experts", counts[2] * beside) if beside else None
        return experts(config, index, counts, routing=routing, shared=own)

    return decoder(config, layers(config, rotation(config, neighbours=True), feed))


def gpt_oss(config: Any) -> DecoderSpec:
    """Sinks, every other layer with a window, and experts with biases and a clamped activation."""
    if (getattr(config, "swiglu_alpha", 1.702), getattr(config, "swiglu_limit", 7.0)) != (1.702, 7.0):  # since 5.23
        raise Undescribed("swiglu_alpha and swiglu_limit are not 1.702 and 7")
    counts = _counts(config, "num_local_experts", inner="intermediate_size")

    def feed(index: int) -> Experts:
        names: dict[str, Any] = {"activation": CLAMPED_SWIGLU, "router": weight(index, "mlp.router")}
        return experts(config, index, counts, transposed=True, woven=True, **names)

    return decoder(config, layers(config, rotation(config), feed, sinks=_sinks))


def exaone(config: Any) -> DecoderSpec:
    """K-EXAONE: as EXAONE 4 attends, and DeepSeek V3's choice after a few dense layers."""

    def feed(index: int) -> Mlp | Experts:
        if config.mlp_layer_types[index] == "dense":
            return mlp(config, index)
        return ranked(config, index, config.num_experts, config.num_shared_experts)

    return decoder(config, layers(config, windows_turn(config), feed, norms=head_norms))


def kolibri(config: Any) -> DecoderSpec:
    """As EXAONE 4 attends, norms around both halves, and a choice by scores before their sigmoid."""
    counts = _counts(config)

    def feed(index: int) -> Experts:
        correction = f"model.layers.{index}.mlp.gate.e_score_correction_bias"
        routing = Routing(sigmoid=True, raw=True, correction=correction, divided=config.norm_topk_prob)
        beside = shared_mlp(config, index, "mlp.shared_experts", config.shared_expert_intermediate_size)
        return experts(config, index, counts, routing=routing, shared=beside)

    return decoder(config, layers(config, windows_turn(config), feed, around, norms=head_norms))


def hunyuan_3(config: Any) -> DecoderSpec:
    """Hy3: norms of heads, and a choice by a sigmoid with a correction after a dense layer."""
    counts = _counts(config)

    def feed(index: int) -> Mlp | Experts:
        if config.mlp_layer_types[index] == "dense":
            return mlp(config, index)
        correction = f"model.layers.{index}.mlp.e_score_correction_bias"
        routing = Routing(sigmoid=True, correction=correction, scale=config.router_scaling_factor)
        beside = shared_mlp(config, index, "mlp.shared_experts", counts[2] * config.num_shared_experts)
        return experts(config, index, counts, routing=routing, shared=beside)

    return decoder(config, layers(config, rotation(config), feed, norms=head_norms))


def hunyuan(config: Any) -> DecoderSpec:
    """Hunyuan's first mixture: heads are normed after their rotation, and a shared MLP is added to experts."""

    def of_layer(said: Any, index: int) -> int:
        return int(said if isinstance(said, int) else said[index])

    def feed(index: int) -> Experts:
        counts = (of_layer(config.num_experts, index), of_layer(config.moe_topk, index), config.intermediate_size)
        beside = shared_mlp(config, index, "mlp.shared_mlp", config.intermediate_size)
        return experts(config, index, counts, router=weight(index, "mlp.gate.wg"), shared=beside)

    return decoder(config, layers(config, hunyuan_rotation(config), feed, norms=late_norms))


def flint(config: Any) -> DecoderSpec:
    """Sinks, positions in windows alone, and shares that are sigmoids."""
    counts, routing = _counts(config), Routing(sigmoid=True, divided=config.norm_topk_prob)

    def feed(index: int) -> Mlp | Experts:
        if index in config.mlp_only_layers or (index + 1) % config.decoder_sparse_step:
            return mlp(config, index)
        beside = shared_mlp(config, index, "mlp.shared_expert", config.shared_expert_intermediate_size)
        return experts(config, index, counts, routing=routing, shared=beside)

    turning = rotation(config)
    own = layers(
        config, lambda index: turning if _slides(config, index) else None, feed, norms=head_norms, sinks=_sinks
    )
    return decoder(config, own)


def afmoe(config: Any) -> DecoderSpec:
    """Trinity: gates in a matrix of their own, positions in windows alone, norms around both halves."""
    turning, counts = rotation(config), _counts(config)

    def feed(index: int) -> Mlp | Experts:
        if index < config.num_dense_layers:
            return mlp(config, index)
        routing = Routing(sigmoid=True, correction=f"model.layers.{index}.mlp.expert_bias", scale=config.route_scale)
        beside = shared_mlp(config, index, "mlp.shared_experts", counts[2] * config.num_shared_experts)
        router = weight(index, "mlp.router.gate")
        return experts(config, index, counts, router=router, routing=routing, shared=beside)

    def norms(index: int) -> Norms:
        own = ("input_layernorm", "pre_mlp_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
        return Norms(*weights(index, *own))

    own = layers(
        config,
        lambda index: turning if _slides(config, index) else None,
        feed,
        norms,
        norms=head_norms,
        qkv=lambda index: weights(index, *QKV, "self_attn.gate_proj"),
        gated=True,
    )
    return decoder(config, own, embedding_scale=config.hidden_size**0.5 if config.mup_enabled else 1.0)


def laguna(config: Any) -> DecoderSpec:
    """Laguna: each layer has a number of heads of its own, and a gate for each."""
    if config.gating not in (True, "per-head"):
        raise Undescribed(f"gating is {config.gating!r}, where one gate for each head is known")
    if config.moe_router_logit_softcapping:
        raise Undescribed("moe_router_logit_softcapping is set")
    counts = _counts(config)

    def feed(index: int) -> Mlp | Experts:
        if config.mlp_layer_types[index] == "dense":
            return mlp(config, index)
        correction = f"model.layers.{index}.mlp.gate.e_score_correction_bias"
        routing = Routing(sigmoid=True, correction=correction, scale=config.moe_routed_scaling_factor)
        beside = shared_mlp(config, index, "mlp.shared_experts", config.shared_expert_intermediate_size)
        return experts(config, index, counts, routing=routing, shared=beside)

    own = layers(
        config,
        lambda index: rotation(config, kind_of(config, index), partial=True),
        feed,
        heads=lambda index: config.num_attention_heads_per_layer[index],
        norms=head_norms,
        qkv=lambda index: weights(index, *QKV, "self_attn.g_proj"),
        gated=True,
        head_gates=True,
        soft_gates=True,
    )
    return decoder(config, own)


def aria(config: Any) -> DecoderSpec:
    """Experts with transposed matrices and SiLU."""
    counts = _counts(config, "moe_num_experts", "moe_topk", "intermediate_size")

    def feed(index: int) -> Experts:
        beside = shared_mlp(config, index, "mlp.shared_experts", counts[2] * config.moe_num_shared_experts)
        names: dict[str, Any] = {"activation": SILU, "router": weight(index, "mlp.router"), "shared": beside}
        return experts(config, index, counts, transposed=True, **names)

    return decoder(config, layers(config, rotation(config), feed))


def cohere(config: Any) -> DecoderSpec:
    """Command A with experts: halves side by side, and positions in windows or in dense layers before them."""
    count, sigmoid = config.num_shared_experts, config.expert_selection_fn == "sigmoid"
    scale = 0.5 if count and config.shared_expert_combination_strategy == "average" else 1.0
    routing = Routing(sigmoid=sigmoid, divided=not sigmoid or config.norm_topk_prob, scale=scale)
    counts, turning = _counts(config, inner="intermediate_size"), rotation(config, neighbours=True)

    def turns(index: int) -> Rotation | None:
        dense = config.mlp_layer_types[index] == "dense" and config.prefix_dense_sliding_window_pattern == 1
        return turning if dense or _slides(config, index) else None

    def feed(index: int) -> Mlp | Experts:
        if config.mlp_layer_types[index] == "dense":
            return replace(mlp(config, index), inner=config.prefix_dense_intermediate_size)
        beside = shared_mlp(config, index, "mlp.shared_experts", counts[2] * count) if count else None
        return experts(config, index, counts, routing=routing, shared=beside, shared_scale=scale)

    centred = config.rms_norm_eps is None
    norm = Norm(config.layer_norm_eps if centred else config.rms_norm_eps, centred)
    return decoder(config, layers(config, turns, feed, shared), norm, logit_scale=config.logit_scale)


def qwen(config: Any) -> DecoderSpec:
    """Qwen 3 with norms of heads, Qwen 2 with a gated shared expert; Mellum with windows."""
    second, mellum = config.model_type == "qwen2_moe", config.model_type == "mellum"
    own = layers(
        config,
        lambda index: rotation(config, kind_of(config, index), partial=mellum),
        lambda index: qwen_mlp(config, index, second),
        norms=None if second else head_norms,
    )
    return decoder(config, own)


def qwen_mlp(config: Any, layer: int, shared: bool) -> Mlp | Experts:
    """The MLP of a layer, which may be dense. ``shared``: there is a gated expert for every row."""
    sparse, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None) or ()
    kinds = getattr(config, "mlp_layer_types", None) or ()
    if not getattr(config, "num_experts", 0) or layer in dense or (layer + 1) % sparse or "dense" in kinds[layer:][:1]:
        return mlp(config, layer)
    beside: dict[str, Any] = {}
    if shared:
        beside["shared"] = shared_mlp(config, layer, "mlp.shared_expert", config.shared_expert_intermediate_size)
        beside["shared_gate"] = weight(layer, "mlp.shared_expert_gate")
    routing = Routing(divided=getattr(config, "norm_topk_prob", True))
    return experts(config, layer, _counts(config), routing=routing, **beside)


def _counts(
    config: Any, count: str = "num_experts", used: str = "num_experts_per_tok", inner: str = "moe_intermediate_size"
) -> tuple[int, int, int]:
    """Experts, how many a row takes, and their width, by the names of a configuration's fields."""
    return getattr(config, count), getattr(config, used), getattr(config, inner)


def _norms_together(layer: int) -> HeadNorms:
    return head_norms(layer, whole=True)


def _sinks(layer: int) -> str:
    return f"model.layers.{layer}.self_attn.sinks"


def _slides(config: Any, layer: int) -> bool:
    return kind_of(config, layer) == "sliding_attention"
