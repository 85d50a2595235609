"""Latent attention: DeepSeek V2 and V3, and what others do otherwise, most with experts after a few dense layers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from actors.engines.decoder.families.parts import (
    Undescribed,
    attention,
    before,
    decoder,
    experts,
    mlp,
    ranked,
    rotation,
    shared_mlp,
    stretch_of,
    weight,
)
from actors.engines.decoder.spec import (
    Attention,
    DecoderSpec,
    Experts,
    Latent,
    Layer,
    Mlp,
    Norms,
    Rotation,
    Routing,
)

DENSE = {"youtu", "minicpm3"}


def describe(config: Any) -> DecoderSpec:
    return _latent(config, rotation(config, neighbours=getattr(config, "rope_interleave", None) is not False))


def minicpm(config: Any) -> DecoderSpec:
    """MiniCPM 3: dense, with multipliers, and pairs half a head apart."""
    return replace(
        _latent(config, rotation(config), config.scale_depth / math.sqrt(config.num_hidden_layers)),
        embedding_scale=config.scale_emb,
        logit_scale=config.dim_model_base / config.hidden_size,
    )


def mistral(config: Any) -> DecoderSpec:
    """Mistral Small 4: queries are stretched after the positions of its training."""
    turning = rotation(config, partial=True, neighbours=config.rope_interleave is not False)
    return _latent(config, replace(turning, stretch=stretch_of(config)))


def _latent(config: Any, turning: Rotation, scale: float = 1.0) -> DecoderSpec:
    """``scale``: multiplies what each half of a layer adds."""
    if config.attention_bias:
        raise Undescribed("attention_bias is set")

    def norms(index: int) -> Norms:
        if config.model_type != "axk1" or config.mlp_layer_types[index] == "dense":
            return before(index)
        return replace(before(index), behind_mlp=weight(index, "mlp.post_mlp_layernorm"))

    def layer(index: int) -> Layer:
        own = _attention(config, index, turning)
        return Layer(own, _mlp(config, index), norms(index), scales=(scale, scale))

    return decoder(config, layer)


def _attention(config: Any, layer: int, turning: Rotation) -> Attention:
    low, plain, turned = config.q_lora_rank is not None, config.qk_nope_head_dim, config.qk_rope_head_dim
    latent = Latent(
        rank=config.kv_lora_rank,
        turned=turned,
        plain=plain,
        values=config.v_head_dim,
        query=weight(layer, "self_attn.q_b_proj" if low else "self_attn.q_proj"),
        down=weight(layer, "self_attn.kv_a_proj_with_mqa"),
        norm=weight(layer, "self_attn.kv_a_layernorm"),
        up=weight(layer, "self_attn.kv_b_proj"),
        query_down=weight(layer, "self_attn.q_a_proj") if low else None,
        query_norm=weight(layer, "self_attn.q_a_layernorm") if low else None,
        query_rank=config.q_lora_rank or 0,
    )
    scale = (plain + turned) ** -0.5 * _stretch(config.rope_parameters)
    width = turned + config.kv_lora_rank
    return attention(config, layer, turning, kv_heads=1, width=width, scale=scale, qkv=(), window=0, latent=latent)


def _stretch(parameters: dict[str, Any]) -> float:
    """YaRN's factor of scores, without its factor of rotations."""
    all_dimensions = parameters.get("mscale_all_dim", 0)
    if parameters.get("rope_type", "default") == "default" or not all_dimensions or parameters["factor"] <= 1:
        return 1.0
    return float((0.1 * all_dimensions * math.log(parameters["factor"]) + 1.0) ** 2)


def _mlp(config: Any, layer: int) -> Mlp | Experts:
    kinds = getattr(config, "mlp_layer_types", None)
    if config.model_type in DENSE:
        return mlp(config, layer)
    if kinds[layer] == "dense" if kinds else layer < config.first_k_dense_replace:
        return mlp(config, layer)
    if config.model_type not in ("deepseek_v2", "mistral4"):
        return ranked(config, layer, config.n_routed_experts)
    ours = config.model_type == "mistral4"
    grouped = ours or config.topk_method == "group_limited_greedy"
    inner = config.moe_intermediate_size
    return experts(
        config,
        layer,
        (config.n_routed_experts, config.num_experts_per_tok, inner),
        routing=Routing(
            groups=config.n_group if grouped else 1,
            used_groups=config.topk_group if grouped else 1,
            best=2 if ours else 1,
            divided=ours and config.norm_topk_prob,
            scale=config.routed_scaling_factor,
        ),
        shared=shared_mlp(config, layer, "mlp.shared_experts", inner * config.n_shared_experts),
    )
