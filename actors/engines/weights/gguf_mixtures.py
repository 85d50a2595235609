"""GGUF architectures with experts."""

from __future__ import annotations

import numpy as np

from actors.engines.weights.gguf import GGUF
from actors.engines.weights.gguf_architecture import (
    ATTENTION,
    BEHIND_ATTENTION,
    IN_FRONT,
    MLP,
    QUERY_NORMS,
    Architecture,
    Config,
    Floats,
    Made,
)
from actors.engines.weights.gguf_dense import granite

MAVERICK = 128  # experts: the only number that tells it from Scout
SOFTMAX = 1  # of expert_gating_func


def experts(file: GGUF, config: Config) -> Config:
    inner = file.of_architecture("expert_feed_forward_length", config["intermediate_size"])
    return {
        "num_experts": file.of_architecture("expert_count"),
        "num_experts_per_tok": file.of_architecture("expert_used_count"),
        "moe_intermediate_size": inner,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def qwen2_moe(file: GGUF, config: Config) -> Config:
    shared = file.of_architecture("expert_shared_feed_forward_length", config["intermediate_size"])
    return experts(file, config) | {"norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def _olmoe(file: GGUF, config: Config) -> Config:
    return experts(file, config) | {"norm_topk_prob": False}


def _mixtral(file: GGUF, config: Config) -> Config:
    return {
        "num_local_experts": file.of_architecture("expert_count"),
        "num_experts_per_tok": file.of_architecture("expert_used_count"),
    }


def _granite_moe(file: GGUF, config: Config) -> Config:
    return granite(file, config) | _mixtral(file, config)


def _gpt_oss(file: GGUF, config: Config) -> Config:
    rope = config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        rope = {**rope, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    layers = config["num_hidden_layers"]
    return {
        "rope_parameters": rope,
        "num_local_experts": file.of_architecture("expert_count"),
        "num_experts_per_tok": file.of_architecture("expert_used_count"),
        "intermediate_size": file.of_architecture("expert_feed_forward_length", config["intermediate_size"]),
        "sliding_window": file.of_architecture("attention.sliding_window", 128),
        "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)],
    }


def _ranked(file: GGUF, config: Config) -> Config:
    """As DeepSeek's experts: behind a few dense layers, chosen by groups."""
    of = file.of_architecture
    return {
        "n_routed_experts": of("expert_count"),
        "num_experts_per_tok": of("expert_used_count"),
        "moe_intermediate_size": of("expert_feed_forward_length"),
        "n_shared_experts": of("expert_shared_count", 0),
        "first_k_dense_replace": of("leading_dense_block_count", 0),
        "n_group": of("expert_group_count", 1),
        "topk_group": of("expert_group_used_count", 1),
        "routed_scaling_factor": of("expert_weights_scale", 1.0),
        "norm_topk_prob": of("expert_weights_norm", False),
    }


def _glm4_moe(file: GGUF, config: Config) -> Config:
    return _ranked(file, config) | {"use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors}


def _llama4(file: GGUF, config: Config) -> Config:
    """What no file says is as in both published models."""
    of = file.of_architecture
    return {
        "intermediate_size_mlp": config["intermediate_size"],
        "intermediate_size": of("expert_feed_forward_length"),
        "num_local_experts": of("expert_count"),
        "num_experts_per_tok": of("expert_used_count"),
        "interleave_moe_layer_step": of("interleave_moe_layer_step", 1),
        "attention_chunk_size": 8192,
        "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(config["num_hidden_layers"])],
        "use_qk_norm": of("expert_count") != MAVERICK,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    }


def _deepseek2(file: GGUF, config: Config) -> Config:
    """DeepSeek V2 and V3, and GLM 4.7 Flash, which is as V3. Old files have no keys of unfolded heads."""
    of = file.of_architecture
    turned = of("rope.dimension_count")
    rope = {name: one for name, one in config["rope_parameters"].items() if name != "partial_rotary_factor"}
    if stretch := of("rope.scaling.yarn_log_multiplier"):
        rope |= {"mscale": 10 * stretch, "mscale_all_dim": 10 * stretch}
    second = of("expert_gating_func", SOFTMAX) == SOFTMAX
    names = {"model_type": "deepseek_v2"} if second else {}
    return {
        **_ranked(file, config),
        **names,
        "num_key_value_heads": config["num_attention_heads"],
        "head_dim": turned,
        "q_lora_rank": of("attention.q_lora_rank"),
        "kv_lora_rank": of("attention.kv_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": of("attention.key_length_mla", of("attention.key_length")) - turned,
        "v_head_dim": of("attention.value_length_mla", of("attention.value_length")),
        "rope_parameters": rope,
        "topk_method": "group_limited_greedy" if of("expert_group_count", 1) > 1 else "greedy",
    }


def _keys_and_values(keys: Floats, values: Floats) -> Floats:
    """Of heads one below the other, each its keys and then its values."""
    whole: Floats = np.concatenate([keys.swapaxes(1, 2), values], 1)
    return whole.reshape(-1, whole.shape[2])


def _stacked(gate: Floats, up: Floats) -> Floats:
    return np.concatenate([gate, up], 1)


def _woven(gate: Floats, up: Floats) -> Floats:
    """gpt-oss: gate and up side by side in the last dimension, inputs in the one before."""
    woven: Floats = np.stack([gate, up], -1)
    if woven.ndim == 3:
        return woven.reshape(len(gate), -1)
    return np.ascontiguousarray(woven.transpose(0, 2, 1, 3).reshape(len(gate), gate.shape[2], -1))


def _swapped(weight: Floats) -> Floats:
    return np.ascontiguousarray(weight.swapaxes(1, 2))


def of_experts(part: str = "mlp") -> Made:
    return {
        f"{part}.experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), _stacked),
        f"{part}.experts.down_proj": (("ffn_down_exps.weight",), lambda down: down),
    }


ROUTER = {"mlp.gate": "ffn_gate_inp"}
SHARED = {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
SHARED_GATE: Made = {
    "mlp.shared_expert_gate.weight": (("ffn_gate_inp_shexp.weight",), lambda gate: gate.reshape(1, -1))
}
_SHARED_EXPERTS = {ours.replace("expert.", "experts."): theirs for ours, theirs in SHARED.items()}
_CORRECTED: Made = {"mlp.gate.e_score_correction_bias": (("exp_probs_b.bias",), lambda bias: bias)}
_LATENT = {
    "self_attn.q_proj": "attn_q",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.o_proj": "attn_output",
}
# Files of Llama's architecture with experts
MIXTRAL = Architecture("mixtral", ATTENTION | IN_FRONT | ROUTER, _mixtral, turned=True, made=of_experts())
MIXTURES = {
    "qwen3moe": Architecture(
        "qwen3_moe",
        ATTENTION | QUERY_NORMS | IN_FRONT | ROUTER,
        experts,
        made=of_experts(),
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        ATTENTION | IN_FRONT | ROUTER | SHARED,
        qwen2_moe,
        made=of_experts() | SHARED_GATE,
    ),
    "olmoe": Architecture("olmoe", ATTENTION | QUERY_NORMS | IN_FRONT | ROUTER, _olmoe, made=of_experts()),
    "granitemoe": Architecture(
        "granitemoe",
        ATTENTION | IN_FRONT | {"block_sparse_moe.router": "ffn_gate_inp"},
        _granite_moe,
        turned=True,
        made=of_experts("block_sparse_moe"),
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        ATTENTION | MLP | QUERY_NORMS | BEHIND_ATTENTION | ROUTER | _SHARED_EXPERTS,
        _glm4_moe,
        made=of_experts() | _CORRECTED,
    ),
    "llama4": Architecture(
        "llama4_text",
        ATTENTION
        | IN_FRONT
        | {"feed_forward.router": "ffn_gate_inp"}
        | {ours.replace("mlp.", "feed_forward."): theirs for ours, theirs in (MLP | SHARED).items()},
        _llama4,
        made={
            "feed_forward.experts.gate_up_proj": (
                ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
                lambda gate, up: _swapped(_stacked(gate, up)),
            ),
            "feed_forward.experts.down_proj": (("ffn_down_exps.weight",), _swapped),
        },
    ),
    "deepseek2": Architecture(
        "deepseek_v3",
        IN_FRONT | MLP | ROUTER | _SHARED_EXPERTS | _LATENT,
        _deepseek2,
        made=of_experts()
        | _CORRECTED
        | {"self_attn.kv_b_proj.weight": (("attn_k_b.weight", "attn_v_b.weight"), _keys_and_values)},
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        ATTENTION | BEHIND_ATTENTION | {"mlp.router": "ffn_gate_inp"},
        _gpt_oss,
        made={
            "self_attn.sinks": (("attn_sinks.weight",), lambda sinks: sinks),
            "mlp.experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), _woven),
            "mlp.experts.gate_up_proj_bias": (("ffn_gate_exps.bias", "ffn_up_exps.bias"), _woven),
            "mlp.experts.down_proj": (("ffn_down_exps.weight",), _swapped),
            "mlp.experts.down_proj_bias": (("ffn_down_exps.bias",), lambda bias: bias),
        },
    ),
}
