"""Gemma 1 to 4: scaled embeddings, and norms that multiply by one more than their weights but in Gemma 4.

Gemma 2 and 3 have norms after attention and MLP too, and layers with windows, which Gemma 3 turns by a base of their
own. Gemma 2 caps scores and logits. Gemma 4 has wider heads in layers without windows, layers that read keys and
values of earlier ones, inputs of each layer's own, and in one size experts beside its MLPs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from actors.engines.decoder.families.parts import (
    Undescribed,
    activation,
    before,
    decoder,
    head_norms,
    kind_of,
    layers,
    mlp,
    rotation,
    weight,
    weights,
    window_of,
)
from actors.engines.decoder.spec import (
    Attention,
    Beside,
    DecoderSpec,
    ExpertNorms,
    Experts,
    HeadNorms,
    Layer,
    LayerInputs,
    Mlp,
    Norm,
    Norms,
    Rotation,
)


def describe(config: Any) -> DecoderSpec:
    if getattr(config, "use_bidirectional_attention", False):
        raise Undescribed("use_bidirectional_attention is set")
    first, private = config.model_type == "gemma", config.model_type == "vaultgemma"
    scale = getattr(config, "query_pre_attn_scalar", None) or config.head_dim
    turnings = {kind: rotation(config, kind) for kind in {kind_of(config, i) for i in range(config.num_hidden_layers)}}
    act = config.hidden_act if first else config.hidden_activation

    def norms_of(index: int) -> Norms:
        four = _four_norms(index)
        return before(index) if first else Norms(four.attention, four.mlp) if private else four

    own = layers(
        config,
        lambda index: turnings[kind_of(config, index)],
        lambda index: mlp(config, index, name=act),
        norms_of,
        scale=scale**-0.5,
        cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
        norms=head_norms if config.model_type == "gemma3_text" else None,
    )
    return decoder(
        config,
        own,
        Norm(config.rms_norm_eps, offset=1.0),
        embedding_scale=config.hidden_size**0.5,
        logit_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
    )


def describe_4(config: Any) -> DecoderSpec:
    """Layers differ in their heads; the last ones read keys and values of earlier ones. That of 12B knows neither
    inputs of layers nor experts."""
    if getattr(config, "use_bidirectional_attention", None) == "all":
        raise Undescribed("use_bidirectional_attention is set")
    count, width = config.num_hidden_layers, getattr(config, "hidden_size_per_layer_input", 0)
    own = count - config.num_kv_shared_layers
    act = activation(config.hidden_activation)

    def layer(index: int) -> Layer:
        kind, shares = kind_of(config, index), index >= own
        last = max((i for i in range(own) if kind_of(config, i) == kind), default=0)  # an assistant has none of its own
        wide = config.use_double_wide_mlp and shares
        gate, out = (weight(index, f"per_layer_{name}") for name in ("input_gate", "projection"))
        inner = replace(mlp(config, index, name=config.hidden_activation), inner=config.intermediate_size * (1 + wide))
        return Layer(
            _attention_4(config, index, last if shares else None),
            _experts_4(config, index, inner) if getattr(config, "enable_moe_block", False) else inner,
            _four_norms(index),
            beside=Beside(act, gate, out, weight(index, "post_per_layer_input_norm")) if width else None,
            scale=f"model.layers.{index}.layer_scalar",
        )

    inputs = LayerInputs(
        width,
        table="model.embed_tokens_per_layer.weight",
        matrix="model.per_layer_model_projection.weight",
        norm="model.per_layer_projection_norm.weight",
        table_scale=width**0.5,
        matrix_scale=config.hidden_size**-0.5,
        scale=0.5**0.5,
    )
    return decoder(
        config,
        layer,
        embedding_scale=config.hidden_size**0.5,
        logit_cap=config.final_logit_softcapping or 0.0,
        inputs=inputs if width else None,
    )


def _attention_4(config: Any, index: int, shares: int | None) -> Attention:
    kind, width = kind_of(config, index), _of_layer(config, index, "head_dim")
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    if shares is not None:
        names = names[:1]
    elif config.attention_k_eq_v and kind == "full_attention":
        names = ("q_proj", "k_proj", "k_proj")
    query_norm, key_norm = weights(index, "self_attn.q_norm", "self_attn.k_norm")
    return Attention(
        config.num_attention_heads,
        _of_layer(config, index, "num_key_value_heads"),
        width,
        scale=1.0,
        qkv=weights(index, *(f"self_attn.{name}" for name in names)),
        out=weight(index, "self_attn.o_proj"),
        rotation=rotation_4(config.rope_parameters[kind], width),
        window=window_of(config, index),
        norms=HeadNorms(query_norm, None if shares is not None else key_norm, value=True),
        shares=shares,
    )


def _of_layer(config: Any, layer: int, name: str) -> int:
    """A number of a layer's own."""
    each = config.per_layer_config
    if isinstance(each, dict):  # layers are numbered by names: layer 5 of 30 is "05"
        own: dict[str, Any] = next((one for key, one in each.items() if int(key) == layer), {})
        return int(own.get(name) or getattr(config, name))
    return int(getattr(each[layer], name))


def _experts_4(config: Any, index: int, beside: Mlp) -> Experts:
    norms = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_2", "post_feedforward_layernorm_1")
    layer = f"model.layers.{index}"
    return Experts(
        *(config.num_experts, config.top_k_experts, config.moe_intermediate_size),
        beside.activation,
        weight(index, "router.proj"),
        f"{layer}.experts.gate_up_proj",
        f"{layer}.experts.down_proj",
        shared=beside,
        norms=ExpertNorms(f"{layer}.router.scale", *weights(index, *norms)),
        scales=f"{layer}.router.per_expert_scale",
    )


def rotation_4(own: Any, width: int) -> Rotation:
    """Pairs after the share that is turned stay as they are."""
    name = own.get("rope_type", "default")
    if name not in ("default", "proportional"):
        raise Undescribed(f"no kernel has the rope_type {name} of Gemma 4")
    turned = int(own.get("partial_rotary_factor", 1.0) * width // 2) if name == "proportional" else width // 2
    frequencies = 1.0 / own["rope_theta"] ** (torch.arange(0, 2 * turned, 2, dtype=torch.float) / width)
    return Rotation((*frequencies.tolist(), *[0.0] * (width // 2 - turned)))


def _four_norms(layer: int) -> Norms:
    return Norms(
        attention=weight(layer, "input_layernorm"),
        mlp=weight(layer, "pre_feedforward_layernorm"),
        behind_attention=weight(layer, "post_attention_layernorm"),
        behind_mlp=weight(layer, "post_feedforward_layernorm"),
    )
