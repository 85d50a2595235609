"""Families with attention and a dense MLP in every layer: Llama, and what others do otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from actors.engines.decoder.families.parts import (
    Undescribed,
    around,
    before,
    behind,
    decoder,
    head_norms,
    hunyuan_rotation,
    kind_of,
    late_norms,
    layers,
    mlp,
    rotation,
    shared,
    stretch_of,
    weight,
    weights,
    windows_turn,
)
from actors.engines.decoder.spec import (
    UNWEIGHTED,
    XIELU,
    DecoderSpec,
    HeadNorms,
    Mlp,
    Norm,
    Norms,
    Rotation,
)

NORMED = {"qwen3", "qwen3_vl_text"}


def llama(config: Any, turning: Rotation | None = None) -> DecoderSpec:
    """Mistral, Qwen 2 and Seed too, and Qwen 3 with norms of heads. Qwen-VL turns three parts of a head by three
    positions, which are one and the same in a text."""
    norms = head_norms if config.model_type in NORMED else None
    return decoder(config, layers(config, turning or rotation(config), norms=norms))


def neighbours(config: Any) -> DecoderSpec:
    """Ernie 4.5 and Helium."""
    return llama(config, rotation(config, neighbours=True))


def _ungated(config: Any, turning: Rotation, norm: Norm | None = None) -> DecoderSpec:
    return decoder(config, layers(config, turning, lambda index: mlp(config, index, ("mlp.up_proj",))), norm)


def arcee(config: Any) -> DecoderSpec:
    """No gate."""
    return _ungated(config, rotation(config))


def jais(config: Any) -> DecoderSpec:
    """Jais 2: layer norms, squared ReLU, no gate."""
    return _ungated(config, rotation(config), Norm(config.layer_norm_eps, centred=True))


def nemotron(config: Any) -> DecoderSpec:
    """Nemotron 3 and 4: layer norms that multiply by one more than their weights, squared ReLU, no gate."""
    return _ungated(config, rotation(config, partial=True), Norm(config.norm_eps, centred=True, offset=1.0))


def ministral(config: Any) -> DecoderSpec:
    """Ministral 3 stretches queries after the positions of its training."""
    return llama(config, replace(rotation(config), stretch=stretch_of(config)))


def smollm(config: Any) -> DecoderSpec:
    """Some layers know no positions."""
    turning = rotation(config)
    return decoder(config, layers(config, lambda index: turning if config.no_rope_layers[index] else None))


def stablelm(config: Any) -> DecoderSpec:
    """Layer norms, and a quarter of each head turned."""
    if config.qk_layernorm:
        raise Undescribed("qk_layernorm is set: every head has norms of its own")
    norms = shared if config.use_parallel_residual else before
    own = layers(config, rotation(config, partial=True), around=norms, window=0)
    return decoder(config, own, Norm(config.layer_norm_eps, centred=True))


def starcoder(config: Any) -> DecoderSpec:
    """Layer norms, biases everywhere, and no gate."""
    own = layers(config, rotation(config), lambda index: mlp(config, index, ("mlp.c_fc",), "mlp.c_proj"))
    return decoder(config, own, Norm(config.norm_epsilon, centred=True))


def cohere(config: Any) -> DecoderSpec:
    """Command R: halves of one layer norm, side by side. The second version knows positions in windows only, Compass
    in the layers that have a base."""
    compass, second = config.model_type == "cohere_compass_text", config.model_type == "cohere2"

    def turning(index: int) -> Rotation | None:
        kind = kind_of(config, index)
        if config.rope_parameters[kind] is None if compass else second and kind != "sliding_attention":
            return None
        return rotation(config, kind, neighbours=not compass)

    norms, scale = head_norms if getattr(config, "use_qk_norm", False) else None, config.logit_scale
    own = layers(config, turning, around=shared, norms=norms)
    norm = Norm(config.layer_norm_eps, centred=True)
    return decoder(config, own, norm, logit_scale=1.0 if scale is None else scale)


def exaone(config: Any) -> DecoderSpec:
    """EXAONE 4: norms after both halves alone; with windows, whole layers know no positions."""
    return decoder(config, layers(config, windows_turn(config), around=behind, norms=head_norms))


def olmo(config: Any) -> DecoderSpec:
    """OLMo 2 and 3: norms after both halves alone, and of all heads' queries and keys together."""

    def turning(index: int) -> Rotation:
        return rotation(config, kind_of(config, index))

    return decoder(config, layers(config, turning, around=behind, norms=lambda index: head_norms(index, whole=True)))


def olmo_1(config: Any) -> DecoderSpec:
    """OLMo 1: layer norms without weights."""
    if config.clip_qkv is not None:
        raise Undescribed("clip_qkv is set")
    own = layers(config, rotation(config), around=_unweighted)
    return decoder(config, own, Norm(1e-5, centred=True), final_norm=UNWEIGHTED)


def hunyuan(config: Any) -> DecoderSpec:
    """Heads are normed after their rotation."""
    return decoder(config, layers(config, hunyuan_rotation(config), norms=late_norms))


def nanochat(config: Any) -> DecoderSpec:
    """Norms without weights, of embeddings and of turned heads too; heads are turned the other way round."""
    forward = rotation(config)
    turning = replace(forward, frequencies=tuple(-frequency for frequency in forward.frequencies))
    own = layers(
        config,
        turning,
        lambda index: mlp(config, index, ("mlp.fc1",), "mlp.fc2"),
        around=_unweighted,
        norms=HeadNorms(turned=True),
    )
    cap = config.final_logit_softcapping or 0.0
    return decoder(config, own, final_norm=UNWEIGHTED, embedded_norm=UNWEIGHTED, logit_cap=cap)


def _unweighted(layer: int) -> Norms:
    return Norms(UNWEIGHTED, UNWEIGHTED)


def apertus(config: Any) -> DecoderSpec:
    """An activation with two numbers of each layer's own."""
    if config.hidden_act != XIELU or getattr(config, "output_vocab_size", None) is not None:
        raise Undescribed("hidden_act is not xielu, or output_vocab_size is set")

    def feed(index: int) -> Mlp:
        both = tuple(f"model.layers.{index}.mlp.act_fn.alpha_{sign}" for sign in "pn")
        up, down = weights(index, "mlp.up_proj", "mlp.down_proj")
        return Mlp(config.intermediate_size, XIELU, (up,), down, gated=False, shape=both)

    def norms(index: int) -> Norms:
        return Norms(*weights(index, "attention_layernorm", "feedforward_layernorm"))

    return decoder(config, layers(config, rotation(config), feed, norms, norms=head_norms))


def phi3(config: Any) -> DecoderSpec:
    """Phi 3 and 4: queries, keys and values in one matrix, gate and up in another."""
    feed, turning = _fused(config), rotation(config, partial=True)
    return decoder(config, layers(config, turning, feed, qkv=lambda index: weights(index, "self_attn.qkv_proj")))


def phi(config: Any) -> DecoderSpec:
    """Phi 1 and 2: parallel halves."""

    def norms(index: int) -> HeadNorms:
        return head_norms(index, "self_attn.q_layernorm", "self_attn.k_layernorm")

    own = layers(
        config,
        rotation(config, partial=True),
        lambda index: mlp(config, index, ("mlp.fc1",), "mlp.fc2"),
        shared,
        out=lambda index: weight(index, "self_attn.dense"),
        norms=norms if config.qk_layernorm else None,
    )
    norm = Norm(config.layer_norm_eps, centred=True)
    return decoder(config, own, norm, final_norm="model.final_layernorm.weight")


def glm(config: Any) -> DecoderSpec:
    """GLM 4: half of a head is turned, neighbours by neighbours. The later ones have norms after both halves too."""
    turning, norms = rotation(config, partial=True, neighbours=True), before if config.model_type == "glm" else around
    return decoder(config, layers(config, turning, _fused(config), norms))


def _fused(config: Any) -> Callable[[int], Mlp]:
    """Gate and up in one matrix."""
    return lambda index: mlp(config, index, ("mlp.gate_up_proj",))
