"""Families older than Llama, with other names of weights: layer norms and biases, no gates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from actors.engines.decoder.families.parts import Undescribed, activation, attention, decoder, rotation
from actors.engines.decoder.spec import DecoderSpec, HeadNorms, Layer, Mlp, Norm, Norms, Positions, Rotation

APART = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of a family's weights, without ``.weight``: those of a layer within it."""

    layers: str
    qkv: tuple[str, ...]
    out: str
    mlp: tuple[str, str]  # up and down
    norms: tuple[str, ...]  # before attention, and before the MLP; one: both halves share it
    embedding: str
    final_norm: str

    def of(self, layer: int, *names: str) -> tuple[str, ...]:
        return tuple(f"{self.layers}.{layer}.{name}.weight" for name in names)


_GPT2 = _Names(
    *("transformer.h", ("attn.c_attn",), "attn.c_proj", ("mlp.c_fc", "mlp.c_proj"), ("ln_1", "ln_2")),
    *("transformer.wte", "transformer.ln_f"),
)
_NEO = replace(_GPT2, qkv=tuple(f"attn.attention.{name}" for name in APART), out="attn.attention.out_proj")
_GPTJ = replace(
    _GPT2,
    qkv=tuple(f"attn.{name}" for name in APART),
    out="attn.out_proj",
    mlp=("mlp.fc_in", "mlp.fc_out"),
    norms=("ln_1",),
)
_NEOX = _Names(
    *("gpt_neox.layers", ("attention.query_key_value",), "attention.dense"),
    *(("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), ("input_layernorm", "post_attention_layernorm")),
    *("gpt_neox.embed_in", "gpt_neox.final_layer_norm"),
)
_PERSIMMON = replace(
    _NEOX,
    layers="model.layers",
    qkv=("self_attn.query_key_value",),
    out="self_attn.dense",
    embedding="model.embed_tokens",
    final_norm="model.final_layernorm",
)
_FALCON = replace(
    _NEOX,
    layers="transformer.h",
    qkv=("self_attention.query_key_value",),
    out="self_attention.dense",
    embedding="transformer.word_embeddings",
    final_norm="transformer.ln_f",
)


def _described(
    config: Any,
    names: _Names,
    eps: float,
    mlp: tuple[str, int | None],
    own: Callable[[int], dict[str, Any]] = lambda layer: {},
    parallel: bool = False,
    **changes: Any,
) -> DecoderSpec:
    """``mlp``: activation and width, None: four times the model's. ``own``: what is different in a layer's attention,
    which usually has as many heads of keys as of queries; ``changes``: of :func:`decoder`."""

    def layer(index: int) -> Layer:
        usual = {"kv_heads": config.num_attention_heads, "window": 0, "qkv": names.of(index, *names.qkv)}
        [out], (up, down) = names.of(index, names.out), names.of(index, *names.mlp)
        mixer = attention(config, index, None, **(usual | {"out": out} | own(index)))
        feed = Mlp(4 * config.hidden_size if mlp[1] is None else mlp[1], activation(mlp[0]), (up,), down, gated=False)
        first, second, *_ = *names.of(index, *names.norms), None
        return Layer(mixer, feed, Norms(first, second), parallel=parallel)

    ends = {"embedding": f"{names.embedding}.weight", "final_norm": f"{names.final_norm}.weight"}
    return decoder(config, layer, Norm(eps, centred=True), **(ends | changes))


def gpt2(config: Any) -> DecoderSpec:
    """A table of positions, and queries, keys and values in one matrix. Matrices are transposed, but in BigCode."""
    if config.add_cross_attention:
        raise Undescribed("add_cross_attention is set")
    bigcode, heads = config.model_type == "gpt_bigcode", config.num_attention_heads
    many = bigcode and not config.multi_query
    scale = (config.hidden_size // heads) ** -0.5 if config.scale_attn_weights else 1.0
    falls = getattr(config, "scale_attn_by_inverse_layer_idx", False)

    def own(index: int) -> dict[str, Any]:
        kv_heads = 1 if bigcode and not many else heads
        return {"kv_heads": kv_heads, "scale": scale / (index + 1) if falls else scale, "woven": many}

    mlp, positions = (config.activation_function, config.n_inner), Positions("transformer.wpe.weight")
    return _described(config, _GPT2, config.layer_norm_epsilon, mlp, own, positions=positions, transposed=not bigcode)


def gpt_neo(config: Any) -> DecoderSpec:
    """GPT-Neo: scores as they are, and windows in every other layer."""

    def own(index: int) -> dict[str, Any]:
        return {"scale": 1.0, "window": config.window_size if config.attention_layers[index] == "local" else 0}

    mlp, positions = (config.activation_function, config.intermediate_size), Positions("transformer.wpe.weight")
    return _described(config, _NEO, config.layer_norm_epsilon, mlp, own, positions=positions)


def gptj(config: Any) -> DecoderSpec:
    """GPT-J: halves side by side, and the leading pairs of heads are turned, neighbours by neighbours."""
    turned = config.rotary_dim or config.hidden_size
    if turned > config.hidden_size // config.num_attention_heads:
        raise Undescribed("rotary_dim is wider than a head")
    turning = Rotation(tuple((1.0 / 10000 ** (torch.arange(0, turned, 2) / turned)).tolist()), neighbours=True)
    mlp = (config.activation_function, config.n_inner)
    return _described(config, _GPTJ, config.layer_norm_epsilon, mlp, lambda index: {"rotation": turning}, True)


def gpt_neox(config: Any) -> DecoderSpec:
    """Pythia: halves side by side with norms of their own."""
    own = {"woven": True, "rotation": rotation(config, partial=True)}
    mlp, parallel = (config.hidden_act, config.intermediate_size), config.use_parallel_residual
    return _described(config, _NEOX, config.layer_norm_eps, mlp, lambda index: own, parallel)


def falcon(config: Any) -> DecoderSpec:
    """Falcon: halves side by side, with one norm or two; heads share keys in groups, or all of them."""
    if config.alibi:
        raise Undescribed("alibi is set: its positions are slopes")
    grouped, parallel = config.new_decoder_architecture, config.parallel_attn
    kv_heads = config.num_kv_heads if grouped or not config.multi_query else 1
    if grouped and not parallel:
        raise Undescribed("new_decoder_architecture is set without parallel_attn")
    norms = _FALCON.norms[: 1 if parallel else 2]
    if grouped and config.num_ln_in_parallel_attn in (None, 2):
        norms = ("ln_attn", "ln_mlp")
    names, mlp = replace(_FALCON, norms=norms), (config.activation, config.ffn_hidden_size)
    own = {"kv_heads": kv_heads, "woven": True, "rotation": rotation(config)}
    return _described(config, names, config.layer_norm_epsilon, mlp, lambda index: own, parallel)


def opt(config: Any) -> DecoderSpec:
    """OPT, and BioGPT: the first two rows of their tables of positions are of none."""
    bio = config.model_type == "biogpt"
    if not bio and (not config.do_layer_norm_before or config.word_embed_proj_dim != config.hidden_size):
        raise Undescribed("do_layer_norm_before is not set, or word_embed_proj_dim is not hidden_size")
    if not bio and (config._remove_final_layer_norm or not config.layer_norm_elementwise_affine):
        raise Undescribed("_remove_final_layer_norm is set, or layer_norm_elementwise_affine is not")
    model = "biogpt" if bio else "model.decoder"
    names = _Names(
        *(f"{model}.layers", tuple(f"self_attn.{name}" for name in APART), "self_attn.out_proj", ("fc1", "fc2")),
        *(("self_attn_layer_norm", "final_layer_norm"), f"{model}.embed_tokens"),
        f"{model}.{'layer_norm' if bio else 'final_layer_norm'}",
    )
    mlp = (config.hidden_act, config.intermediate_size) if bio else (config.activation_function, config.ffn_dim)
    changes: dict[str, Any] = {"head": "output_projection.weight"} if bio else {}
    if bio and config.scale_embedding:
        changes["embedding_scale"] = config.hidden_size**0.5
    positions = Positions(f"{model}.embed_positions.weight", 2)
    return _described(config, names, 1e-5, mlp, positions=positions, **changes)


def persimmon(config: Any) -> DecoderSpec:
    """Persimmon: half of a head is turned, heads have layer norms, and ReLU is squared."""

    def own(index: int) -> dict[str, Any]:
        query, key = _PERSIMMON.of(index, "self_attn.q_layernorm", "self_attn.k_layernorm")
        norms = HeadNorms(query, key) if config.qk_layernorm else None
        return {"woven": True, "norms": norms, "rotation": turning}

    turning, mlp = rotation(config, partial=True), (config.hidden_act, config.intermediate_size)
    return _described(config, _PERSIMMON, config.layer_norm_eps, mlp, own)
