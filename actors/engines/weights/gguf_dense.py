"""GGUF architectures without experts and recurrent layers."""

from __future__ import annotations

import numpy as np

from actors.engines.weights.gguf import GGUF
from actors.engines.weights.gguf_architecture import (
    ATTENTION,
    IN_FRONT,
    MLP,
    QUERY_NORMS,
    SANDWICH,
    STANDARD,
    Architecture,
    Config,
    every,
)


def _gemma2(file: GGUF, config: Config) -> Config:
    big = (
        config["num_hidden_layers"] == 46
    )  # the 27B scales by what a head would have, https://arxiv.org/abs/2408.00118
    width = config["hidden_size"] // config["num_attention_heads"] if big else config["head_dim"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width,
        "sliding_window": file.of_architecture("attention.sliding_window", 4096),
        "attn_logit_softcapping": file.of_architecture("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.of_architecture("final_logit_softcapping", 30.0),
    }


def _gemma3(file: GGUF, config: Config) -> Config:
    big = config["num_hidden_layers"] == 62
    width = config["hidden_size"] // config["num_attention_heads"] if big else config["head_dim"]
    local = {"rope_type": "default", "rope_theta": file.of_architecture("rope.freq_base_swa", 10_000.0)}
    whole = {**config["rope_parameters"], "rope_theta": file.of_architecture("rope.freq_base", 1_000_000.0)}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width,
        "sliding_window": file.of_architecture("attention.sliding_window", 512),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": file.of_architecture("final_logit_softcapping"),
        "layer_types": every(6, config["num_hidden_layers"]),
        "rope_parameters": {"sliding_attention": local, "full_attention": whole},
    }


def _gemma4(file: GGUF, config: Config) -> Config:
    of, layers = file.of_architecture, config["num_hidden_layers"]
    kinds = ["sliding_attention" if one else "full_attention" for one in of("attention.sliding_window_pattern")]
    whole = kinds.index("full_attention")
    inner = np.broadcast_to(of("feed_forward_length"), layers).tolist()
    heads = np.broadcast_to(of("attention.head_count_kv"), layers).tolist()
    local = {"rope_type": "default", "rope_theta": of("rope.freq_base_swa", 10_000.0)}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": kinds,
        "intermediate_size": inner[0],
        "use_double_wide_mlp": inner[-1] != inner[0],
        "head_dim": of("attention.key_length_swa"),
        "global_head_dim": of("attention.key_length"),
        "num_key_value_heads": heads[kinds.index("sliding_attention")],
        "num_global_key_value_heads": heads[whole],
        "attention_k_eq_v": f"blk.{whole}.attn_v.weight" not in file.tensors,
        "num_kv_shared_layers": of("attention.shared_kv_layers", 0),
        "sliding_window": of("attention.sliding_window"),
        "hidden_size_per_layer_input": of("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": config["vocab_size"],
        "enable_moe_block": of("expert_count", 0) > 0,
        "num_experts": of("expert_count", 0) or None,
        "top_k_experts": of("expert_used_count", 0) or None,
        "moe_intermediate_size": of("expert_feed_forward_length", 0) or None,
        "final_logit_softcapping": of("final_logit_softcapping"),
        "rope_parameters": {"sliding_attention": local, "full_attention": config["rope_parameters"]},
    }


def _phi3(file: GGUF, config: Config) -> Config:
    made: Config = {"sliding_window": file.of_architecture("attention.sliding_window")}
    before = file.of_architecture("rope.scaling.original_context_length", config["max_position_embeddings"])
    made["original_max_position_embeddings"] = before
    if "rope_factors_long.weight" in file.tensors:
        long, short = (file.tensors[f"rope_factors_{kind}.weight"].values().tolist() for kind in ("long", "short"))
        rope = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        made["rope_parameters"] = {**config["rope_parameters"], **rope, "original_max_position_embeddings": before}
    return made


def granite(file: GGUF, config: Config) -> Config:
    return {
        "embedding_multiplier": file.of_architecture("embedding_scale", 1.0),
        "residual_multiplier": file.of_architecture("residual_scale", 1.0),
        "attention_multiplier": file.of_architecture("attention.scale", 1.0),
        "logits_scaling": file.of_architecture("logit_scale", 1.0),
    }


def _smollm3(file: GGUF, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    return {
        "no_rope_layers": [int((i + 1) % 4 != 0) for i in range(layers)],
        "layer_types": ["full_attention"] * layers,
    }


def _cohere2(file: GGUF, config: Config) -> Config:
    return {
        "layer_norm_eps": file.of_architecture("attention.layer_norm_epsilon", 1e-5),
        "logit_scale": file.of_architecture("logit_scale", 1.0),
        "sliding_window": file.of_architecture("attention.sliding_window", 4096),
        "layer_types": every(4, config["num_hidden_layers"]),
    }


_GLM4 = {"input_layernorm": "attn_norm", "post_self_attn_layernorm": "post_attention_norm"} | {
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
_FUSED_MLP = {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_LAYER_INPUTS = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
_BESIDE_MLP = {
    "router.proj": "ffn_gate_inp",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}
_OF_GEMMA4 = {
    "layer_scalar": "layer_output_scale.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
DENSE = {
    "llama": Architecture("llama", STANDARD, turned=True),
    "qwen2": Architecture("qwen2", STANDARD),
    "qwen3": Architecture("qwen3", STANDARD | QUERY_NORMS),
    "gemma2": Architecture("gemma2", ATTENTION | MLP | SANDWICH, _gemma2, offset=True),
    "gemma3": Architecture("gemma3_text", ATTENTION | MLP | SANDWICH | QUERY_NORMS, _gemma3, offset=True),
    "gemma4": Architecture(
        "gemma4_text",
        ATTENTION | MLP | SANDWICH | QUERY_NORMS | _LAYER_INPUTS | _BESIDE_MLP,
        _gemma4,
        made={ours: ((theirs,), lambda one: one) for ours, theirs in _OF_GEMMA4.items()},
        varied=("feed_forward_length", "attention.head_count_kv"),
        outside={
            "model.embed_tokens_per_layer": "per_layer_token_embd",
            "model.per_layer_model_projection": "per_layer_model_proj",
            "model.per_layer_projection_norm": "per_layer_proj_norm",
        },
    ),
    "phi3": Architecture(
        "phi3",
        {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output"} | _FUSED_MLP | IN_FRONT,
        _phi3,
    ),
    "smollm3": Architecture("smollm3", STANDARD, _smollm3, turned=True),
    "granite": Architecture("granite", STANDARD, granite, turned=True),
    "glm4": Architecture("glm4", ATTENTION | _FUSED_MLP | _GLM4),
    "olmo2": Architecture(
        "olmo2",
        ATTENTION
        | MLP
        | QUERY_NORMS
        | {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    ),
    "cohere2": Architecture("cohere2", ATTENTION | MLP | {"input_layernorm": "attn_norm"}, _cohere2),
}
