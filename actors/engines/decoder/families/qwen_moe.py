"""Qwen's mixtures: Qwen 3 with norms of heads, Qwen 2 with a shared expert behind a gate. Some layers may be dense."""

from __future__ import annotations

from typing import Any

from actors.engines.decoder.families.parts import (
    attention,
    before,
    decoder,
    experts,
    head_norms,
    mlp,
    rotation,
    shared_mlp,
    weight,
)
from actors.engines.decoder.spec import DecoderSpec, Experts, Layer, Mlp, Norm


def describe(config: Any) -> DecoderSpec:
    turning = rotation(config)
    second = config.model_type == "qwen2_moe"

    def layer(index: int) -> Layer:
        norms = {} if second else head_norms(index)
        return Layer(attention(config, index, turning, **norms), _mlp(config, index), before(index))

    return decoder(config, layer, Norm(config.rms_norm_eps))


def _mlp(config: Any, layer: int) -> Mlp | Experts:
    if layer in config.mlp_only_layers or (layer + 1) % config.decoder_sparse_step:
        return mlp(config, layer, config.hidden_act)
    counts = (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size)
    changes: dict[str, Any] = {"divided": config.norm_topk_prob}
    if config.model_type == "qwen2_moe":
        changes["shared"] = shared_mlp(config, layer, "mlp.shared_expert", config.shared_expert_intermediate_size)
        changes["shared_gate"] = weight(layer, "mlp.shared_expert_gate")
    return experts(config, layer, counts, **changes)
