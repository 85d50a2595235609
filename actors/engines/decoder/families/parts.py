"""What the descriptions of families have in common: names and sizes as most configurations give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from actors.engines.decoder.families.stretched import llama3, longrope, yarn
from actors.engines.decoder.spec import (
    GELU,
    GELU_TANH,
    RELU,
    RELU_SQUARED,
    SILU,
    Attention,
    DecoderSpec,
    Experts,
    HeadNorms,
    Layer,
    Mlp,
    Norm,
    Norms,
    QueryScale,
    Rotation,
    Routing,
)
from protocols.errors import ModelError

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
# Dynamic scaling changes frequencies beyond the longest context alone, where no text reaches; the three positions of
# MRoPE are one and the same in a text
ROPES = frozenset({"default", "linear", "dynamic", "llama3", "yarn", "longrope", "mrope"})
KINDS = {"full_attention", "sliding_attention", "chunked_attention"}
_ACTIVATIONS = {
    "silu": SILU,
    "swish": SILU,
    "gelu_pytorch_tanh": GELU_TANH,
    "gelu_new": GELU_TANH,
    "gelu": GELU,
    "relu": RELU,
    "relu2": RELU_SQUARED,
}


class Undescribed(ModelError):
    """A configuration that no :class:`DecoderSpec` says; the reason is the message."""


def width_of(config: Any) -> int:
    width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return width


def activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        raise Undescribed(f"no kernel has the activation {name!r}")
    return _ACTIVATIONS[name]


def rotation(
    config: Any,
    kind: str | None = None,
    partial: bool = False,
    neighbours: bool = False,
    parameters: Mapping[str, Any] | None = None,
) -> Rotation:
    """As ``rope_parameters`` say, for layers of a ``kind`` where they differ by it. ``partial``: the family knows
    ``partial_rotary_factor``; ``parameters``: other parameters in their place. Computed here, because transformers
    takes two seconds to import."""
    parameters = config.rope_parameters if parameters is None else parameters
    own = parameters.get(kind or "", parameters)
    name, share = own.get("rope_type", "default"), own.get("partial_rotary_factor", 1.0)
    if name not in ROPES:
        raise Undescribed(f"no kernel has the rope_type {name}")
    if not partial and share != 1.0:
        raise Undescribed("partial_rotary_factor is not 1, and its family turns whole heads")
    turned, longer = int(width_of(config) * share), None
    frequencies, factor = 1.0 / (own["rope_theta"] ** (torch.arange(0, turned, 2, dtype=torch.float) / turned)), 1.0
    if name == "linear":
        frequencies = frequencies / own["factor"]
    elif name == "llama3":
        frequencies = llama3(own, frequencies)
    elif name == "yarn":
        frequencies, factor = yarn(own, turned, config.max_position_embeddings)
    elif name == "longrope":
        frequencies, factor, longer = longrope(own, turned, config.max_position_embeddings)
    return Rotation(tuple(frequencies.tolist()), float(factor), neighbours, longer=longer)


def hunyuan_rotation(config: Any) -> Rotation:
    """Hunyuan's rotation: a stretched one is so for texts of any length."""
    own, width = config.rope_parameters, width_of(config)
    if own.get("rope_type") == "dynamic" and own.get("alpha"):
        own = {"rope_theta": own["rope_theta"] * own["alpha"] ** (width / (width - 2))}
    return rotation(config, parameters=own)


def stretch_of(config: Any) -> QueryScale:
    """How Ministral 3 and Mistral Small 4 stretch queries after the positions of their training."""
    parameters = config.rope_parameters
    return QueryScale(parameters.get("llama_4_scaling_beta") or 0.0, parameters["original_max_position_embeddings"])


def kind_of(config: Any, layer: int) -> str:
    """One of ``KINDS``."""
    kinds: Sequence[str] | None = getattr(config, "layer_types", None)
    if not kinds:
        return "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    if kinds[layer] not in KINDS:
        raise Undescribed(f"layer_types has {kinds[layer]}")
    return kinds[layer]


def window_of(config: Any, layer: int) -> int:
    """Tokens that a layer's attention sees at most; 0: all."""
    kind = kind_of(config, layer)
    if kind == "full_attention":
        return 0
    return int(config.attention_chunk_size if kind == "chunked_attention" else config.sliding_window)


def weights(layer: int, *names: str) -> tuple[str, ...]:
    return tuple(f"model.layers.{layer}.{name}.weight" for name in names)


def weight(layer: int, name: str) -> str:
    return weights(layer, name)[0]


def attention(config: Any, layer: int, turning: Rotation | None, **changes: Any) -> Attention:
    """Separate matrices, no norms of heads, scores by the root of a head's width. ``changes``: what is different."""
    width = width_of(config)
    usual: dict[str, Any] = {
        "heads": config.num_attention_heads,
        "kv_heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "width": width,
        "scale": width**-0.5,
        "qkv": weights(layer, *QKV),
        "out": weight(layer, "self_attn.o_proj"),
        "rotation": turning,
        "window": 0 if "window" in changes else window_of(config, layer),
    }
    return Attention(**(usual | changes))


def head_norms(
    layer: int, query: str = "self_attn.q_norm", key: str = "self_attn.k_norm", whole: bool = False
) -> HeadNorms:
    return HeadNorms(weight(layer, query), weight(layer, key), whole)


def late_norms(layer: int) -> HeadNorms:
    """As Hunyuan has them."""
    query, key = weights(layer, "self_attn.query_layernorm", "self_attn.key_layernorm")
    return HeadNorms(query, key, turned=True)


def mlp(
    config: Any,
    layer: int,
    up: tuple[str, ...] = GATE_UP,
    down: str = "mlp.down_proj",
    name: str | None = None,
    gate_scale: float = 1.0,
) -> Mlp:
    """One matrix that ends with ``gate_up_proj`` holds both. ``name``: of the activation."""
    gated = len(up) == 2 or up[0].endswith("gate_up_proj")
    act = activation(name or config.hidden_act)
    return Mlp(config.intermediate_size, act, weights(layer, *up), weight(layer, down), gated, gate_scale)


def experts(config: Any, layer: int, counts: tuple[int, int, int], part: str = "mlp", **changes: Any) -> Experts:
    """A mixture. ``counts``: experts, how many a row takes, and their width; ``part``: its name in the layer;
    ``changes``: what is different."""
    usual: dict[str, Any] = dict(zip(("count", "used", "inner"), counts, strict=True)) | {
        "activation": changes.get("activation") or activation(config.hidden_act),
        "router": weight(layer, f"{part}.gate"),
        "up": f"model.layers.{layer}.{part}.experts.gate_up_proj",
        "down": f"model.layers.{layer}.{part}.experts.down_proj",
    }
    return Experts(**(usual | changes))


def shared_mlp(config: Any, layer: int, name: str, inner: int) -> Mlp:
    """The MLP ``name`` that every row takes in addition to experts."""
    up = weights(layer, f"{name}.gate_proj", f"{name}.up_proj")
    return Mlp(inner, activation(config.hidden_act), up, weight(layer, f"{name}.down_proj"))


def ranked(config: Any, layer: int, count: int, shared: int | None = None) -> Experts:
    """As DeepSeek V3 chooses: by a sigmoid with a correction, from the best groups; ``shared`` experts in addition."""
    inner = config.moe_intermediate_size
    return experts(
        config,
        layer,
        (count, config.num_experts_per_tok, inner),
        routing=ranked_routing(config, layer, "mlp"),
        shared=shared_mlp(
            config, layer, "mlp.shared_experts", inner * (config.n_shared_experts if shared is None else shared)
        ),
    )


def ranked_routing(config: Any, layer: int, part: str) -> Routing:
    return Routing(
        sigmoid=True,
        correction=f"model.layers.{layer}.{part}.gate.e_score_correction_bias",
        groups=config.n_group,
        used_groups=config.topk_group,
        best=2,
        divided=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
    )


def decoder(
    config: Any, layers: Callable[[int], Layer] | Sequence[Layer], norm: Norm | None = None, **changes: Any
) -> DecoderSpec:
    """With Llama's kind of norms, and usual names outside of layers. ``changes``: what is different."""
    usual: dict[str, Any] = {
        "embedding": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "head": "lm_head.weight",
    }
    return DecoderSpec(
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        layers=tuple(map(layers, range(config.num_hidden_layers)) if callable(layers) else layers),
        norm=norm or Norm(config.rms_norm_eps),
        **(usual | changes),
    )


def before(layer: int) -> Norms:
    """Norms before attention and before the MLP."""
    return Norms(weight(layer, "input_layernorm"), weight(layer, "post_attention_layernorm"))


def behind(layer: int) -> Norms:
    """Norms after attention and after the MLP alone."""
    own = weights(layer, "post_attention_layernorm", "post_feedforward_layernorm")
    return Norms(None, None, *own)


def shared(layer: int) -> Norms:
    """One norm before parallel halves."""
    return Norms(weight(layer, "input_layernorm"), None)


def layers(
    config: Any,
    turning: Rotation | Callable[[int], Rotation | None] | None,
    feed: Callable[[int], Mlp | Experts] | None = None,
    around: Callable[[int], Norms] = before,
    **own: Any,
) -> Callable[[int], Layer]:
    """Layers of attention and an MLP, or what ``feed`` gives. Halves are parallel if they share a norm. ``turning`` and
    ``own``, changes of :func:`attention`: alike in all layers, or by a layer's number."""

    def layer(index: int) -> Layer:
        turns, *changes = (each(index) if callable(each) else each for each in (turning, *own.values()))
        mixer = attention(config, index, turns, **dict(zip(own, changes, strict=True)))
        return Layer(mixer, feed(index) if feed else mlp(config, index), around(index), parallel=around is shared)

    return layer


def windows_turn(config: Any) -> Callable[[int], Rotation | None]:
    """As EXAONE 4: layers with windows are turned alone, and without windows all are."""
    turning = rotation(config)
    return lambda index: (
        turning if config.sliding_window is None or kind_of(config, index) == "sliding_attention" else None
    )


def around(layer: int) -> Norms:
    """Norms on both sides of both halves, as the later GLM 4 names them."""
    own = weights(layer, "post_self_attn_layernorm", "post_mlp_layernorm")
    return Norms(before(layer).attention, before(layer).mlp, *own)
