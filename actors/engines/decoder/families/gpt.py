"""Families older than Llama, with other names of weights: layer norms and biases, no gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from actors.engines.decoder.families.parts import Undescribed, activation, attention, decoder, rotation
from actors.engines.decoder.spec import Attention, DecoderSpec, HeadNorms, Layer, Mlp, Norm, Norms, Positions, Rotation


def gpt2(config: Any) -> DecoderSpec:
    """A table of positions, and queries, keys and values in one matrix. Matrices are transposed, but in BigCode."""
    if config.add_cross_attention:
        raise Undescribed("add_cross_attention is set")
    bigcode = config.model_type == "gpt_bigcode"
    names, width = _named("transformer.h"), config.hidden_size // config.num_attention_heads
    scale = width**-0.5 if config.scale_attn_weights else 1.0

    def layer(index: int) -> Layer:
        many = bigcode and not config.multi_query
        own = _attention(
            config,
            index,
            None,
            kv_heads=1 if bigcode and not many else config.num_attention_heads,
            scale=scale / (index + 1) if getattr(config, "scale_attn_by_inverse_layer_idx", False) else scale,
            qkv=names(index, "attn.c_attn"),
            out=names(index, "attn.c_proj")[0],
            woven=many,
        )
        inner = _inner(config, config.n_inner)
        feed = _mlp(inner, config.activation_function, *names(index, "mlp.c_fc", "mlp.c_proj"))
        return Layer(own, feed, Norms(*names(index, "ln_1", "ln_2")))

    norm = Norm(config.layer_norm_epsilon, centred=True)
    ends = _ends("transformer.wte", "transformer.ln_f")
    positions = Positions("transformer.wpe.weight")
    return decoder(config, layer, norm, **ends, positions=positions, transposed=not bigcode)


def gpt_neo(config: Any) -> DecoderSpec:
    """GPT-Neo: scores as they are, and windows in every other layer."""
    names = _named("transformer.h")

    def layer(index: int) -> Layer:
        own = _attention(
            config,
            index,
            None,
            scale=1.0,
            qkv=names(index, *(f"attn.attention.{name}_proj" for name in "qkv")),
            out=names(index, "attn.attention.out_proj")[0],
            window=config.window_size if config.attention_layers[index] == "local" else 0,
        )
        inner = _inner(config, config.intermediate_size)
        feed = _mlp(inner, config.activation_function, *names(index, "mlp.c_fc", "mlp.c_proj"))
        return Layer(own, feed, Norms(*names(index, "ln_1", "ln_2")))

    norm = Norm(config.layer_norm_epsilon, centred=True)
    ends = _ends("transformer.wte", "transformer.ln_f")
    return decoder(config, layer, norm, **ends, positions=Positions("transformer.wpe.weight"))


def gptj(config: Any) -> DecoderSpec:
    """GPT-J: halves side by side, and the leading pairs of heads are turned, neighbours by neighbours."""
    names, width = _named("transformer.h"), config.hidden_size // config.num_attention_heads
    turned = config.rotary_dim or config.hidden_size
    if turned > width:
        raise Undescribed("rotary_dim is wider than a head")
    turning = Rotation(tuple((1.0 / 10000 ** (torch.arange(0, turned, 2) / turned)).tolist()), neighbours=True)

    def layer(index: int) -> Layer:
        qkv = names(index, *(f"attn.{name}_proj" for name in "qkv"))
        own = _attention(config, index, turning, qkv=qkv, out=names(index, "attn.out_proj")[0])
        inner = _inner(config, config.n_inner)
        feed = _mlp(inner, config.activation_function, *names(index, "mlp.fc_in", "mlp.fc_out"))
        return Layer(own, feed, Norms(names(index, "ln_1")[0], None), parallel=True)

    norm = Norm(config.layer_norm_epsilon, centred=True)
    return decoder(config, layer, norm, **_ends("transformer.wte", "transformer.ln_f"))


def gpt_neox(config: Any) -> DecoderSpec:
    """Pythia: halves side by side with norms of their own."""
    names, turning = _named("gpt_neox.layers"), rotation(config, partial=True)

    def layer(index: int) -> Layer:
        qkv, out = (names(index, f"attention.{name}") for name in ("query_key_value", "dense"))
        own = _attention(config, index, turning, qkv=qkv, out=out[0], woven=True)
        both = names(index, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
        norms = Norms(*names(index, "input_layernorm", "post_attention_layernorm"))
        feed = _mlp(config.intermediate_size, config.hidden_act, *both)
        return Layer(own, feed, norms, parallel=config.use_parallel_residual)

    norm = Norm(config.layer_norm_eps, centred=True)
    return decoder(config, layer, norm, **_ends("gpt_neox.embed_in", "gpt_neox.final_layer_norm"))


def falcon(config: Any) -> DecoderSpec:
    """Falcon: halves side by side, with one norm or two; heads share keys in groups, or all of them."""
    if config.alibi:
        raise Undescribed("alibi is set: its positions are slopes")
    names, turning, grouped = _named("transformer.h"), rotation(config), config.new_decoder_architecture
    kv_heads = config.num_kv_heads if grouped or not config.multi_query else 1
    two = grouped and config.num_ln_in_parallel_attn in (None, 2)
    if grouped and not config.parallel_attn:
        raise Undescribed("new_decoder_architecture is set without parallel_attn")

    def norms(index: int) -> Norms:
        if two:
            return Norms(*names(index, "ln_attn", "ln_mlp"))
        first, second = names(index, "input_layernorm", "post_attention_layernorm")
        return Norms(first, None if config.parallel_attn else second)

    def layer(index: int) -> Layer:
        qkv, out = (names(index, f"self_attention.{name}") for name in ("query_key_value", "dense"))
        own = _attention(config, index, turning, kv_heads=kv_heads, qkv=qkv, out=out[0], woven=True)
        inner = _inner(config, config.ffn_hidden_size)
        feed = _mlp(inner, config.activation, *names(index, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"))
        return Layer(own, feed, norms(index), parallel=config.parallel_attn)

    norm = Norm(config.layer_norm_epsilon, centred=True)
    return decoder(config, layer, norm, **_ends("transformer.word_embeddings", "transformer.ln_f"))


def opt(config: Any) -> DecoderSpec:
    """OPT, and BioGPT: the first two rows of their tables of positions are of none."""
    bio = config.model_type == "biogpt"
    if not bio and (not config.do_layer_norm_before or config.word_embed_proj_dim != config.hidden_size):
        raise Undescribed("do_layer_norm_before is not set, or word_embed_proj_dim is not hidden_size")
    if not bio and (config._remove_final_layer_norm or not config.layer_norm_elementwise_affine):
        raise Undescribed("_remove_final_layer_norm is set, or layer_norm_elementwise_affine is not")
    model = "biogpt" if bio else "model.decoder"
    names, act = _named(f"{model}.layers"), config.hidden_act if bio else config.activation_function

    def layer(index: int) -> Layer:
        qkv = names(index, *(f"self_attn.{name}_proj" for name in "qkv"))
        own = _attention(config, index, None, qkv=qkv, out=names(index, "self_attn.out_proj")[0])
        feed = _mlp(config.intermediate_size if bio else config.ffn_dim, act, *names(index, "fc1", "fc2"))
        return Layer(own, feed, Norms(*names(index, "self_attn_layer_norm", "final_layer_norm")))

    ends = _ends(f"{model}.embed_tokens", f"{model}.{'layer_norm' if bio else 'final_layer_norm'}")
    if bio:
        ends["head"] = "output_projection.weight"
    return decoder(
        config,
        layer,
        Norm(1e-5, centred=True),
        **ends,
        embedding_scale=config.hidden_size**0.5 if bio and config.scale_embedding else 1.0,
        positions=Positions(f"{model}.embed_positions.weight", 2),
    )


def persimmon(config: Any) -> DecoderSpec:
    """Persimmon: half of a head is turned, heads have layer norms, and ReLU is squared."""
    names, turning = _named("model.layers"), rotation(config, partial=True)

    def layer(index: int) -> Layer:
        qkv, out = (names(index, f"self_attn.{name}") for name in ("query_key_value", "dense"))
        query, key = names(index, "self_attn.q_layernorm", "self_attn.k_layernorm")
        norms = HeadNorms(query, key)
        own = _attention(
            config, index, turning, qkv=qkv, out=out[0], woven=True, norms=norms if config.qk_layernorm else None
        )
        both = names(index, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
        feed = _mlp(config.intermediate_size, config.hidden_act, *both)
        return Layer(own, feed, Norms(*names(index, "input_layernorm", "post_attention_layernorm")))

    norm = Norm(config.layer_norm_eps, centred=True)
    return decoder(config, layer, norm, final_norm="model.final_layernorm.weight")


def _attention(config: Any, layer: int, turning: Rotation | None, **changes: Any) -> Attention:
    """With as many heads of keys as of queries."""
    return attention(config, layer, turning, **{"kv_heads": config.num_attention_heads, "window": 0} | changes)


def _named(layers: str) -> Callable[..., tuple[str, ...]]:
    """Names of a layer's weights."""
    return lambda index, *names: tuple(f"{layers}.{index}.{name}.weight" for name in names)


def _ends(embedding: str, final_norm: str) -> dict[str, Any]:
    return {"embedding": f"{embedding}.weight", "final_norm": f"{final_norm}.weight"}


def _inner(config: Any, said: int | None) -> int:
    inner: int = 4 * config.hidden_size if said is None else said
    return inner


def _mlp(inner: int, name: str, up: str, down: str) -> Mlp:
    return Mlp(inner, activation(name), (up,), down, gated=False)
