"""Gemma 1, 2 and 3: norms that multiply by one more than their weights, and a scaled embedding.

Gemma 2 and 3 have norms behind attention and MLP too, and layers with windows, which Gemma 3 turns by a base of their
own. Gemma 2 caps scores and logits.
"""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import (
    Undescribed,
    attention,
    before,
    decoder,
    head_norms,
    kind_of,
    mlp,
    rotation,
    weight,
)
from actors.engines.decoder.spec import DecoderSpec, Layer, Norm, Norms


def describe(config: Any) -> DecoderSpec:
    if getattr(config, "use_bidirectional_attention", False):
        raise Undescribed("its attention is not causal")
    first = config.model_type == "gemma"
    scale = getattr(config, "query_pre_attn_scalar", None) or config.head_dim
    turnings = {kind: rotation(config, kind) for kind in {kind_of(config, i) for i in range(config.num_hidden_layers)}}
    act = config.hidden_act if first else config.hidden_activation

    def layer(index: int) -> Layer:
        norms = head_norms(index) if config.model_type == "gemma3_text" else {}
        return Layer(
            attention(
                config,
                index,
                turnings[kind_of(config, index)],
                scale=scale**-0.5,
                cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
                **norms,
            ),
            mlp(config, index, act),
            before(index) if first else _four_norms(index),
        )

    return decoder(
        config,
        layer,
        Norm(config.rms_norm_eps, offset=1.0),
        embedding_scale=config.hidden_size**0.5,
        logit_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
    )


def _four_norms(layer: int) -> Norms:
    return Norms(
        attention=weight(layer, "input_layernorm"),
        mlp=weight(layer, "pre_feedforward_layernorm"),
        behind_attention=weight(layer, "post_attention_layernorm"),
        behind_mlp=weight(layer, "post_feedforward_layernorm"),
    )
