"""Families with attention and a dense MLP in every layer: Llama, and what others do otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actors.engines.decoder.families.parts import (
    GATE_UP,
    Undescribed,
    attention,
    before,
    behind,
    decoder,
    head_norms,
    hunyuan_rotation,
    kind_of,
    late_norms,
    mlp,
    rotation,
    shared,
    stretch_of,
    weight,
    weights,
)
from actors.engines.decoder.spec import (
    UNWEIGHTED,
    XIELU,
    DecoderSpec,
    HeadNorms,
    Layer,
    Mlp,
    Norm,
    Norms,
    Rotation,
)

NORMED = {"qwen3", "qwen3_vl_text"}


def llama(
    config: Any, turning: Rotation | None = None, up: tuple[str, ...] = GATE_UP, norm: Norm | None = None
) -> DecoderSpec:
    """Mistral, Qwen 2 and Seed too, and Qwen 3 with norms of heads. Qwen-VL turns three parts of a head by three
    positions, which are one and the same in a text."""
    turning, normed = turning or rotation(config), config.model_type in NORMED

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, norms=head_norms(index) if normed else None)
        return Layer(own, mlp(config, index, up), before(index))

    return decoder(config, layer, norm)


def neighbours(config: Any) -> DecoderSpec:
    """Ernie 4.5 and Helium."""
    return llama(config, rotation(config, neighbours=True))


def arcee(config: Any) -> DecoderSpec:
    """No gate."""
    return llama(config, up=("mlp.up_proj",))


def jais(config: Any) -> DecoderSpec:
    """Jais 2: layer norms, squared ReLU, no gate."""
    return llama(config, up=("mlp.up_proj",), norm=Norm(config.layer_norm_eps, centred=True))


def ministral(config: Any) -> DecoderSpec:
    """Ministral 3 stretches queries behind the positions of its training."""
    return llama(config, replace(rotation(config), stretch=stretch_of(config)))


def smollm(config: Any) -> DecoderSpec:
    """Some layers know no positions."""
    turning = rotation(config)

    def layer(index: int) -> Layer:
        own = attention(config, index, turning if config.no_rope_layers[index] else None)
        return Layer(own, mlp(config, index), before(index))

    return decoder(config, layer)


def stablelm(config: Any) -> DecoderSpec:
    """Layer norms, and a quarter of each head turned."""
    if config.qk_layernorm:
        raise Undescribed("qk_layernorm is set: every head has norms of its own")
    turning, beside = rotation(config, partial=True), config.use_parallel_residual

    def layer(index: int) -> Layer:
        norms = shared(index) if beside else before(index)
        return Layer(attention(config, index, turning, window=0), mlp(config, index), norms, parallel=beside)

    return decoder(config, layer, Norm(config.layer_norm_eps, centred=True))


def starcoder(config: Any) -> DecoderSpec:
    """Layer norms, biases everywhere, and no gate."""
    turning = rotation(config)

    def layer(index: int) -> Layer:
        return Layer(attention(config, index, turning), mlp(config, index, ("mlp.c_fc",), "mlp.c_proj"), before(index))

    return decoder(config, layer, Norm(config.norm_epsilon, centred=True))


def nemotron(config: Any) -> DecoderSpec:
    """Nemotron 3 and 4: layer norms that multiply by one more than their weights, squared ReLU, no gate."""
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        return Layer(attention(config, index, turning), mlp(config, index, ("mlp.up_proj",)), before(index))

    return decoder(config, layer, Norm(config.norm_eps, centred=True, offset=1.0))


def cohere(config: Any) -> DecoderSpec:
    """Command R: halves of one layer norm, side by side. The second version knows positions in windows only, Compass
    in the layers that have a base."""
    compass, second = config.model_type == "cohere_compass_text", config.model_type == "cohere2"

    def turning(index: int) -> Rotation | None:
        kind = kind_of(config, index)
        if config.rope_parameters[kind] is None if compass else second and kind != "sliding_attention":
            return None
        return rotation(config, kind, neighbours=not compass)

    def layer(index: int) -> Layer:
        norms = head_norms(index) if getattr(config, "use_qk_norm", False) else None
        return Layer(attention(config, index, turning(index), norms=norms), mlp(config, index), shared(index), True)

    norm, scale = Norm(config.layer_norm_eps, centred=True), config.logit_scale
    return decoder(config, layer, norm, logit_scale=1.0 if scale is None else scale)


def exaone(config: Any) -> DecoderSpec:
    """EXAONE 4: norms behind both halves alone; with windows, whole layers know no positions."""
    turning = rotation(config)

    def layer(index: int) -> Layer:
        turns = config.sliding_window is None or kind_of(config, index) == "sliding_attention"
        own = attention(config, index, turning if turns else None, norms=head_norms(index))
        return Layer(own, mlp(config, index), behind(index))

    return decoder(config, layer)


def olmo(config: Any) -> DecoderSpec:
    """OLMo 2 and 3: norms behind both halves alone, and of all heads' queries and keys together."""
    kinds = {kind_of(config, index) for index in range(config.num_hidden_layers)}
    turnings = {kind: rotation(config, kind) for kind in kinds}

    def layer(index: int) -> Layer:
        norms = head_norms(index, whole=True)
        return Layer(
            attention(config, index, turnings[kind_of(config, index)], norms=norms), mlp(config, index), behind(index)
        )

    return decoder(config, layer)


def olmo_1(config: Any) -> DecoderSpec:
    """OLMo 1: layer norms without weights."""
    if config.clip_qkv is not None:
        raise Undescribed("clip_qkv is set")
    turning = rotation(config)

    def layer(index: int) -> Layer:
        return Layer(attention(config, index, turning), mlp(config, index), Norms(UNWEIGHTED, UNWEIGHTED))

    return decoder(config, layer, Norm(1e-5, centred=True), final_norm=UNWEIGHTED)


def hunyuan(config: Any) -> DecoderSpec:
    """Heads are normed behind their rotation."""
    turning = hunyuan_rotation(config)

    def layer(index: int) -> Layer:
        return Layer(attention(config, index, turning, norms=late_norms(index)), mlp(config, index), before(index))

    return decoder(config, layer)


def nanochat(config: Any) -> DecoderSpec:
    """Norms without weights, of embeddings and of turned heads too; heads are turned the other way round."""
    forward = rotation(config)
    turning = replace(forward, frequencies=tuple(-frequency for frequency in forward.frequencies))

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, norms=HeadNorms(turned=True))
        return Layer(own, mlp(config, index, ("mlp.fc1",), "mlp.fc2"), Norms(UNWEIGHTED, UNWEIGHTED))

    cap = config.final_logit_softcapping or 0.0
    return decoder(config, layer, final_norm=UNWEIGHTED, embedded_norm=UNWEIGHTED, logit_cap=cap)


def apertus(config: Any) -> DecoderSpec:
    """An activation with two numbers of each layer's own."""
    if config.hidden_act != XIELU or getattr(config, "output_vocab_size", None) is not None:
        raise Undescribed("hidden_act is not xielu, or output_vocab_size is set")
    turning = rotation(config)

    def layer(index: int) -> Layer:
        both = tuple(f"model.layers.{index}.mlp.act_fn.alpha_{sign}" for sign in "pn")
        up, down = weights(index, "mlp.up_proj", "mlp.down_proj")
        feed = Mlp(config.intermediate_size, XIELU, (up,), down, gated=False, shape=both)
        norms = Norms(*weights(index, "attention_layernorm", "feedforward_layernorm"))
        return Layer(attention(config, index, turning, norms=head_norms(index)), feed, norms)

    return decoder(config, layer)


def phi3(config: Any) -> DecoderSpec:
    """Phi 3 and 4: queries, keys and values in one matrix, gate and up in another."""
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        own = attention(config, index, turning, qkv=weights(index, "self_attn.qkv_proj"))
        return Layer(own, mlp(config, index, ("mlp.gate_up_proj",)), before(index))

    return decoder(config, layer)


def phi(config: Any) -> DecoderSpec:
    """Phi 1 and 2: parallel halves."""
    turning = rotation(config, partial=True)

    def layer(index: int) -> Layer:
        norms = head_norms(index, "self_attn.q_layernorm", "self_attn.k_layernorm") if config.qk_layernorm else None
        own = attention(config, index, turning, out=weight(index, "self_attn.dense"), norms=norms)
        return Layer(own, mlp(config, index, ("mlp.fc1",), "mlp.fc2"), shared(index), parallel=True)

    norm = Norm(config.layer_norm_eps, centred=True)
    return decoder(config, layer, norm, final_norm="model.final_layernorm.weight")


def glm(config: Any) -> DecoderSpec:
    """GLM 4: half of a head is turned, neighbours by neighbours. The later ones have norms behind both halves too."""
    turning = rotation(config, partial=True, neighbours=True)

    def layer(index: int) -> Layer:
        norms = before(index)
        if config.model_type != "glm":
            own = weights(index, "post_self_attn_layernorm", "post_mlp_layernorm")
            norms = Norms(norms.attention, norms.mlp, *own)
        return Layer(attention(config, index, turning), mlp(config, index, ("mlp.gate_up_proj",)), norms)

    return decoder(config, layer)
