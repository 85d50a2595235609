"""Mamba 1 and 2: alone, between some layers with attention (Bamba, Nemotron-H, Jamba), or beside it (Falcon-H1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from actors.engines.decoder.families.parts import (
    Undescribed,
    activation,
    attention,
    decoder,
    experts,
    mlp,
    ranked_routing,
    rotation,
    weight,
    weights,
    width_of,
)
from actors.engines.decoder.spec import (
    SILU,
    UNWEIGHTED,
    DecoderSpec,
    Experts,
    Layer,
    Mlp,
    Norm,
    Norms,
    Routing,
    Scan,
    Selective,
)

FEED_FORWARD = ("feed_forward.gate_proj", "feed_forward.up_proj")
FEEDS = ("mlp", "moe")
TOGETHER = 64  # channels of Mamba 1 that one thread walks
QKV_OUT = ("mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj")


def describe(config: Any) -> DecoderSpec:
    """Bamba."""
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        dense = mlp(config, index, FEED_FORWARD, "feed_forward.down_proj")
        norms = Norms(weight(index, "input_layernorm"), weight(index, "pre_ff_layernorm"))
        if config.layer_types[index] == "linear_attention":
            return Layer(scan(config, index), dense, norms)
        return Layer(attention(config, index, turning), dense, norms)

    return decoder(config, layer, final_norm="model.final_layernorm.weight")


def mamba2(config: Any) -> DecoderSpec:
    """Mamba 2 without MLPs."""
    sizes = (config.num_heads, config.n_groups, config.state_size, config.head_dim, config.conv_kernel)
    return _alone(config, lambda part: _scan(part, sizes, config.hidden_act, config.time_step_limit))


def mamba(config: Any) -> DecoderSpec:
    """Mamba 1 without MLPs, and Falcon Mamba, which norms steps, keys and queries."""
    falcon = config.model_type == "falcon_mamba"
    sizes = (config.intermediate_size, config.state_size, config.conv_kernel, config.time_step_rank)
    norms, eps = ((UNWEIGHTED,) * 3, config.mixer_rms_eps) if falcon else ((), 0.0)
    return _alone(config, lambda part: _selective(part, sizes, config.hidden_act, norms, eps))


def _alone(config: Any, mixer: Callable[[str], Scan | Selective]) -> DecoderSpec:
    """Mixers without MLPs. ``mixer``: by the name of its part."""

    def layer(index: int) -> Layer:
        part = f"backbone.layers.{index}"
        return Layer(mixer(f"{part}.mixer"), None, Norms(f"{part}.norm.weight", None))

    ends = {"embedding": "backbone.embeddings.weight", "final_norm": "backbone.norm_f.weight"}
    return decoder(config, layer, Norm(config.layer_norm_epsilon), **ends)


def jamba(config: Any) -> DecoderSpec:
    """Mamba 1, and every few layers attention; MLPs or experts."""
    inner = config.mamba_expand * config.hidden_size
    sizes = (inner, config.mamba_d_state, config.mamba_d_conv, config.mamba_dt_rank)

    def feed(index: int) -> Mlp | Experts:
        if config.num_experts < 2 or index % config.expert_layer_period != config.expert_layer_offset:
            return mlp(config, index, FEED_FORWARD, "feed_forward.down_proj")
        counts = (config.num_experts, config.num_experts_per_tok, config.intermediate_size)
        router = weight(index, "feed_forward.router")
        return experts(config, index, counts, "feed_forward", router=router, routing=Routing(divided=False))

    def layer(index: int) -> Layer:
        norms = Norms(*weights(index, "input_layernorm", "pre_ff_layernorm"))
        if index % config.attn_layer_period == config.attn_layer_offset:
            return Layer(attention(config, index, None, window=0), feed(index), norms)
        own = weights(index, *(f"mamba.{name}_layernorm" for name in ("dt", "b", "c")))
        part = f"model.layers.{index}.mamba"
        return Layer(_selective(part, sizes, config.hidden_act, own, config.rms_norm_eps), feed(index), norms)

    return decoder(config, layer, final_norm="model.final_layernorm.weight")


def _selective(part: str, sizes: tuple[int, int, int, int], act: str, norms: tuple[str, ...], eps: float) -> Selective:
    """``sizes``: channels, keys, the convolution's and the rank of steps; ``norms``: of rank, keys and queries."""
    inner, keys, kernel, rank = sizes
    values = math.gcd(inner, TOGETHER)
    if activation(act) != SILU:
        raise Undescribed(f"the activation {act!r} of its recurrent layers is not SiLU")
    return Selective(
        *(inner // values, 1, keys, values, kernel),
        (f"{part}.in_proj.weight",),
        f"{part}.conv1d.weight",
        f"{part}.out_proj.weight",
        decay=f"{part}.A_log",
        skip=f"{part}.D",
        rank=rank,
        choice=f"{part}.x_proj.weight",
        steps=f"{part}.dt_proj.weight",
        norms=norms,
        eps=eps,
    )


def falcon_h1(config: Any) -> DecoderSpec:
    """Mamba 2 and attention read the same: two layers for each of the configuration's. Multipliers are all over."""
    turning, entering = rotation(config), config.attention_in_multiplier
    if config.mamba_rms_norm and config.mamba_norm_before_gate:
        raise Undescribed("mamba_norm_before_gate is set")
    biased = (config.attention_bias, config.mamba_proj_bias)
    if any(bias and scale != 1.0 for bias, scale in zip(biased, (entering, config.ssm_in_multiplier), strict=True)):
        raise Undescribed("attention_bias or mamba_proj_bias is set beside multipliers of inputs")
    factors = tuple(config.ssm_in_multiplier * factor for factor in config.ssm_multipliers)
    gate_scale, down_scale = config.mlp_multipliers
    scale = entering**2 * config.key_multiplier * width_of(config) ** -0.5

    def layers(index: int) -> Sequence[Layer]:
        mixer = scan(config, index, normed=config.mamba_rms_norm, factors=factors)
        norms = weights(index, "input_layernorm", "pre_ff_layernorm")
        feed = mlp(config, index, FEED_FORWARD, "feed_forward.down_proj", gate_scale=gate_scale)
        scales = (entering * config.attention_out_multiplier, down_scale)
        own = attention(config, index, turning, scale=scale, window=0)
        return (
            Layer(mixer, None, Norms(norms[0], None), scales=(config.ssm_out_multiplier, 1.0)),
            Layer(own, feed, Norms(None, norms[1]), rereads=True, scales=scales),
        )

    return decoder(
        config,
        [one for index in range(config.num_hidden_layers) for one in layers(index)],
        final_norm="model.final_layernorm.weight",
        embedding_scale=config.embedding_multiplier,
        logit_scale=config.lm_head_multiplier,
    )


def nemotron_h(config: Any) -> DecoderSpec:
    """Each of its layers is half of one here: Mamba 2 or attention, or what is fed by it."""
    if config.moe_latent_size is not None:
        raise Undescribed("moe_latent_size is set")
    sizes = (config.mamba_num_heads, config.n_groups, config.ssm_state_size, config.mamba_head_dim, config.conv_kernel)
    kinds: Sequence[str] = [*config.layers_block_type, ""]
    if any(kinds[index] in FEEDS and kinds[index - 1] in ("", *FEEDS) for index in range(len(kinds))):
        raise Undescribed("layers_block_type has an MLP behind no mixer")

    def feed(index: int) -> Mlp | Experts | None:
        if kinds[index] not in FEEDS:
            return None
        act = activation(config.mlp_hidden_act)

        def dense(part: str, inner: int) -> Mlp:
            up, down = weights(index, f"{part}.up_proj", f"{part}.down_proj")
            return Mlp(inner, act, (up,), down, gated=False)

        if kinds[index] == "mlp":
            return dense("mixer", config.intermediate_size)
        counts = (config.n_routed_experts, config.num_experts_per_tok, config.moe_intermediate_size)
        return experts(
            config,
            index,
            counts,
            "mixer",
            activation=act,
            up=f"model.layers.{index}.mixer.experts.up_proj",
            gated=False,
            routing=ranked_routing(config, index, "mixer"),
            shared=dense("mixer.shared_experts", config.moe_shared_expert_intermediate_size),
        )

    def layer(index: int) -> Layer:
        made = feed(index + 1)
        norms = Norms(weight(index, "norm"), weight(index + 1, "norm") if made else None)
        if kinds[index] == "full_attention":
            *qkv, out = weights(index, *QKV_OUT)
            return Layer(attention(config, index, None, qkv=tuple(qkv), out=out, window=0), made, norms)
        limits = (config.time_step_min, math.inf)
        return Layer(_scan(f"model.layers.{index}.mixer", sizes, config.mamba_hidden_act, limits), made, norms)

    own = [layer(index) for index, kind in enumerate(kinds[:-1]) if kind not in FEEDS]
    ends = {"embedding": "model.embeddings.weight", "final_norm": "model.norm_f.weight"}
    return decoder(config, own, Norm(config.layer_norm_epsilon), **ends)


def scan(config: Any, layer: int, **changes: Any) -> Scan:
    """The Mamba 2 of a layer, by the names of most hybrids. ``changes``: see :func:`_scan`."""
    sizes = (config.mamba_n_heads, config.mamba_n_groups, config.mamba_d_state, config.mamba_d_head)
    part = f"model.layers.{layer}.mamba"
    return _scan(part, (*sizes, config.mamba_d_conv), config.hidden_act, config.time_step_limit, **changes)


def _scan(
    part: str,
    sizes: tuple[int, int, int, int, int],
    act: str,
    limits: Sequence[float] | None,
    normed: bool = True,
    factors: tuple[float, ...] = (),
) -> Scan:
    """``sizes``: heads, groups, keys, values and the convolution's; ``limits``: of steps."""
    least, most = limits or (0.0, math.inf)
    if most != math.inf or activation(act) != SILU:
        raise Undescribed(f"time_step_limit ends, or the activation {act!r} of its recurrent layers is not SiLU")
    return Scan(
        *sizes,
        (f"{part}.in_proj.weight",),
        f"{part}.conv1d.weight",
        f"{part}.out_proj.weight",
        decay=f"{part}.A_log",
        step=f"{part}.dt_bias",
        skip=f"{part}.D",
        norm=f"{part}.norm.weight" if normed else None,
        least=least,
        factors=factors,
    )
