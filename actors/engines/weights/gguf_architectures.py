"""What each GGUF architecture is called in Hugging Face's words, and how its file differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.engines.weights.gguf import GGUF
from protocols.errors import ModelError

Config = dict[str, Any]
Floats = NDArray[np.float32]
Made = dict[str, tuple[tuple[str, ...], Callable[..., Floats]]]
Order = NDArray[np.int64]

ATTENTION = {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"} | {"self_attn.o_proj": "attn_output"}
MLP = {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
QUERY_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
IN_FRONT = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
STANDARD = ATTENTION | MLP | IN_FRONT
SANDWICH = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one ``general.architecture`` is called and how it differs."""

    model_type: str
    class_name: str
    names: dict[str, str]  # of a layer's parts: ours (Hugging Face's) to the file's
    config: Callable[[GGUF, Config], Config] = lambda file, config: {}  # what is added to the usual configuration
    turned: bool = False  # queries and keys have the partners of a rotation side by side
    offset: bool = False  # norms hold w + 1, but for those of recurrent layers
    made: Made = field(default_factory=dict)  # out of several
    varied: tuple[
        str, ...
    ] = ()  # keys that may differ between layers, of which the usual configuration has the largest
    outside: dict[str, str] = field(default_factory=dict)  # names beside the usual ones


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
        "layer_types": _every(6, config["num_hidden_layers"]),
        "rope_parameters": {"sliding_attention": local, "full_attention": whole},
    }


def _gemma4(file: GGUF, config: Config) -> Config:
    of, layers = file.of_architecture, config["num_hidden_layers"]
    if of("expert_count", 0):
        raise ModelError(
            f"{file.path} has experts beside its MLPs, which duoactor does not compute; choose another size"
        )
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
        "final_logit_softcapping": of("final_logit_softcapping"),
        "rope_parameters": {"sliding_attention": local, "full_attention": config["rope_parameters"]},
    }


def _lfm2(file: GGUF, config: Config) -> Config:
    heads = np.broadcast_to(file.of_architecture("attention.head_count_kv"), config["num_hidden_layers"])
    return {
        "layer_types": ["full_attention" if one else "conv" for one in heads],
        "conv_L_cache": file.of_architecture("shortconv.l_cache"),
        "conv_bias": False,
        "norm_eps": config["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(file: GGUF, config: Config) -> Config:
    return (
        _lfm2(file, config)
        | _experts(file, config)
        | {"num_dense_layers": file.of_architecture("leading_dense_block_count", 0), "use_expert_bias": True}
    )


def _every(period: int, layers: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]


def _phi3(file: GGUF, config: Config) -> Config:
    made: Config = {"sliding_window": file.of_architecture("attention.sliding_window")}
    before = file.of_architecture("rope.scaling.original_context_length", config["max_position_embeddings"])
    made["original_max_position_embeddings"] = before
    if "rope_factors_long.weight" in file.tensors:
        long, short = (file.tensors[f"rope_factors_{kind}.weight"].values().tolist() for kind in ("long", "short"))
        rope = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        made["rope_parameters"] = {**config["rope_parameters"], **rope, "original_max_position_embeddings": before}
    return made


def _granite(file: GGUF, config: Config) -> Config:
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
        "layer_types": _every(4, config["num_hidden_layers"]),
    }


def _experts(file: GGUF, config: Config) -> Config:
    inner = file.of_architecture("expert_feed_forward_length", config["intermediate_size"])
    return {
        "num_experts": file.of_architecture("expert_count"),
        "num_experts_per_tok": file.of_architecture("expert_used_count"),
        "moe_intermediate_size": inner,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2_moe(file: GGUF, config: Config) -> Config:
    shared = file.of_architecture("expert_shared_feed_forward_length", config["intermediate_size"])
    return _experts(file, config) | {"norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def _olmoe(file: GGUF, config: Config) -> Config:
    return _experts(file, config) | {"norm_topk_prob": False}


def _mixtral(file: GGUF, config: Config) -> Config:
    return {
        "num_local_experts": file.of_architecture("expert_count"),
        "num_experts_per_tok": file.of_architecture("expert_used_count"),
    }


def _granite_moe(file: GGUF, config: Config) -> Config:
    return _granite(file, config) | _mixtral(file, config)


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


def _qwen35(file: GGUF, config: Config) -> Config:
    layers, heads = config["num_hidden_layers"], file.of_architecture("ssm.time_step_rank")
    groups = file.of_architecture("ssm.group_count")
    period = file.of_architecture("full_attention_interval", 4)
    recurrent = file.of_architecture("attention.recurrent_layers", [(i + 1) % period != 0 for i in range(layers)])
    return {
        "layer_types": ["linear_attention" if one else "full_attention" for one in recurrent[:layers]],
        "linear_conv_kernel_dim": file.of_architecture("ssm.conv_kernel"),
        "linear_num_key_heads": groups,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": file.of_architecture("ssm.state_size"),
        "linear_value_head_dim": file.of_architecture("ssm.inner_size") // heads,
        "tiled_value_heads": heads != groups,
    }


def _qwen35_moe(file: GGUF, config: Config) -> Config:
    return _qwen35(file, config) | _qwen2_moe(file, config) | {"norm_topk_prob": True}


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


_GLM4 = {"input_layernorm": "attn_norm", "post_self_attn_layernorm": "post_attention_norm"} | {
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
_DELTA = {
    **{f"linear_attn.in_proj_{ours}": theirs for ours, theirs in (("qkv", "attn_qkv"), ("z", "attn_gate"))},
    **{f"linear_attn.in_proj_{ours}": theirs for ours, theirs in (("a", "ssm_alpha"), ("b", "ssm_beta"))},
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_OF_DELTA: Made = {
    "linear_attn.conv1d.weight": (("ssm_conv1d.weight",), lambda taps: taps[:, None]),
    "linear_attn.A_log": (("ssm_a",), lambda rates: np.log(-rates)),
    "linear_attn.dt_bias": (("ssm_dt.bias",), lambda bias: bias),
}
_BEHIND_ATTENTION = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
_FUSED_MLP = {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_ROUTER = {"mlp.gate": "ffn_gate_inp"}
_SHARED = {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}


_SHARED_EXPERTS = {ours.replace("expert.", "experts."): theirs for ours, theirs in _SHARED.items()}
_FEED_FORWARD = {
    f"feed_forward.{ours}": f"ffn_{theirs}" for ours, theirs in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
}
_CORRECTED: Made = {"mlp.gate.e_score_correction_bias": (("exp_probs_b.bias",), lambda bias: bias)}
_LFM2 = (
    {ours.replace("o_proj", "out_proj"): theirs for ours, theirs in ATTENTION.items()}
    | {ours.replace("norm", "layernorm"): theirs for ours, theirs in QUERY_NORMS.items()}
    | {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm"}
    | {"conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj"}
    | _FEED_FORWARD
)
_OF_LFM2: Made = {"conv.conv.weight": (("shortconv.conv.weight",), lambda taps: taps[:, None])}
_LAYER_INPUTS = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}


_SHARED_GATE: Made = {
    "mlp.shared_expert_gate.weight": (("ffn_gate_inp_shexp.weight",), lambda gate: gate.reshape(1, -1))
}


def _of_experts(part: str = "mlp") -> Made:
    return {
        f"{part}.experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), _stacked),
        f"{part}.experts.down_proj": (("ffn_down_exps.weight",), lambda down: down),
    }


# Files of Llama's architecture with experts
MIXTRAL = Architecture(
    "mixtral", "MixtralForCausalLM", ATTENTION | IN_FRONT | _ROUTER, _mixtral, turned=True, made=_of_experts()
)
ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", STANDARD, turned=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", STANDARD),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", STANDARD | QUERY_NORMS),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", ATTENTION | MLP | SANDWICH, _gemma2, offset=True),
    "gemma3": Architecture(
        "gemma3_text", "Gemma3ForCausalLM", ATTENTION | MLP | SANDWICH | QUERY_NORMS, _gemma3, offset=True
    ),
    "gemma4": Architecture(
        "gemma4_text",
        "Gemma4ForCausalLM",
        ATTENTION | MLP | SANDWICH | QUERY_NORMS | _LAYER_INPUTS,
        _gemma4,
        made={"layer_scalar": (("layer_output_scale.weight",), lambda one: one)},
        varied=("feed_forward_length", "attention.head_count_kv"),
        outside={
            "model.embed_tokens_per_layer": "per_layer_token_embd",
            "model.per_layer_model_projection": "per_layer_model_proj",
            "model.per_layer_projection_norm": "per_layer_proj_norm",
        },
    ),
    "lfm2": Architecture(
        "lfm2",
        "Lfm2ForCausalLM",
        _LFM2,
        _lfm2,
        made=_OF_LFM2,
        varied=("attention.head_count_kv",),
        outside={"model.embedding_norm": "token_embd_norm"},
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        "Lfm2MoeForCausalLM",
        _LFM2 | {"feed_forward.gate": "ffn_gate_inp"},
        _lfm2_moe,
        made=_OF_LFM2
        | _of_experts("feed_forward")
        | {"feed_forward.expert_bias": (("exp_probs_b.bias",), lambda bias: bias)},
        varied=("attention.head_count_kv",),
        outside={"model.embedding_norm": "token_embd_norm"},
    ),
    "phi3": Architecture(
        "phi3",
        "Phi3ForCausalLM",
        {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output"} | _FUSED_MLP | IN_FRONT,
        _phi3,
    ),
    "smollm3": Architecture("smollm3", "SmolLM3ForCausalLM", STANDARD, _smollm3, turned=True),
    "granite": Architecture("granite", "GraniteForCausalLM", STANDARD, _granite, turned=True),
    "glm4": Architecture("glm4", "Glm4ForCausalLM", ATTENTION | _FUSED_MLP | _GLM4),
    "olmo2": Architecture(
        "olmo2",
        "Olmo2ForCausalLM",
        ATTENTION
        | MLP
        | QUERY_NORMS
        | {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    ),
    "cohere2": Architecture(
        "cohere2", "Cohere2ForCausalLM", ATTENTION | MLP | {"input_layernorm": "attn_norm"}, _cohere2
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        ATTENTION | QUERY_NORMS | IN_FRONT | _ROUTER,
        _experts,
        made=_of_experts(),
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        ATTENTION | IN_FRONT | _ROUTER | _SHARED,
        _qwen2_moe,
        made=_of_experts() | _SHARED_GATE,
    ),
    "olmoe": Architecture(
        "olmoe", "OlmoeForCausalLM", ATTENTION | QUERY_NORMS | IN_FRONT | _ROUTER, _olmoe, made=_of_experts()
    ),
    "granitemoe": Architecture(
        "granitemoe",
        "GraniteMoeForCausalLM",
        ATTENTION | IN_FRONT | {"block_sparse_moe.router": "ffn_gate_inp"},
        _granite_moe,
        turned=True,
        made=_of_experts("block_sparse_moe"),
    ),
    "qwen35": Architecture(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        ATTENTION | QUERY_NORMS | MLP | _BEHIND_ATTENTION | _DELTA,
        _qwen35,
        offset=True,
        made=_OF_DELTA,
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        ATTENTION | QUERY_NORMS | _BEHIND_ATTENTION | _ROUTER | _SHARED | _DELTA,
        _qwen35_moe,
        offset=True,
        made=_OF_DELTA | _of_experts() | _SHARED_GATE,
    ),
    "glm4moe": Architecture(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        ATTENTION | MLP | QUERY_NORMS | _BEHIND_ATTENTION | _ROUTER | _SHARED_EXPERTS,
        _glm4_moe,
        made=_of_experts() | _CORRECTED,
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        ATTENTION | _BEHIND_ATTENTION | {"mlp.router": "ffn_gate_inp"},
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
