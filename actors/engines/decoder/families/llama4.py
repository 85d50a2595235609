"""Llama 4: attention by chunks, stretched queries in layers without positions, and shares on the experts' inputs."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import (
    activation,
    attention,
    before,
    decoder,
    experts,
    kind_of,
    rotation,
    shared_mlp,
    weight,
    weights,
)
from actors.engines.decoder.spec import (
    Attention,
    DecoderSpec,
    Experts,
    HeadNorms,
    Layer,
    Mlp,
    QueryScale,
    Rotation,
    Routing,
)


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config, neighbours=True)
    stretch = QueryScale(config.attn_scale, config.floor_scale, 1) if config.attn_temperature_tuning else None
    still = Rotation((), neighbours=True, stretch=stretch)

    def layer(index: int) -> Layer:
        return Layer(_attention(config, index, turning, still), _mlp(config, index), before(index))

    return decoder(config, layer)


def _attention(config: Any, layer: int, turning: Rotation, still: Rotation) -> Attention:
    turns, chunked = config.no_rope_layers[layer], kind_of(config, layer) == "chunked_attention"
    norms = HeadNorms() if config.use_qk_norm and turns else None
    return attention(config, layer, turning if turns else still, chunked=chunked, norms=norms)


def _mlp(config: Any, layer: int) -> Mlp | Experts:
    if layer not in config.moe_layers:
        up, down = weights(layer, "feed_forward.gate_proj", "feed_forward.up_proj"), "feed_forward.down_proj"
        return Mlp(config.intermediate_size_mlp, activation(config.hidden_act), up, weight(layer, down))
    return experts(
        config,
        layer,
        (config.num_local_experts, config.num_experts_per_tok, config.intermediate_size),
        "feed_forward",
        router=weight(layer, "feed_forward.router"),
        transposed=True,
        inside=True,
        routing=Routing(sigmoid=True, divided=False),
        shared=shared_mlp(config, layer, "feed_forward.shared_expert", config.intermediate_size),
    )
