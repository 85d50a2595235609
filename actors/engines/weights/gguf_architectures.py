"""GGUF architectures in Hugging Face's words: what each is called there, and how its file differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from actors.engines.weights import gguf_configs as configs
from actors.engines.weights import gguf_gpt
from actors.engines.weights import gguf_recurrent as recurrent
from actors.engines.weights.gguf_configs import Config
from actors.engines.weights.gguf_makers import below, keys_and_values, stacked, swapped, woven
from actors.engines.weights.gguf_parts import (
    ATTENTION,
    IN_FRONT,
    MLP,
    QUERY_NORMS,
    STANDARD,
    UNGATED,
    Architecture,
    Configure,
    Made,
    Order,
    of_experts,
    of_scan,
    plain,
)

_SANDWICH = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_BEHIND = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_LATE_NORMS = {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}
_BEHIND_ATTENTION = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
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
_GRANITE_SHARED: Made = {
    "shared_mlp.input_linear.weight": (("ffn_gate_shexp.weight", "ffn_up_shexp.weight"), below),
    **plain({"shared_mlp.output_linear.weight": "ffn_down_shexp.weight"}),
}
_ROUTER = {"mlp.gate": "ffn_gate_inp"}
_SHARED = {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
_SHARED_GATE: Made = {
    "mlp.shared_expert_gate.weight": (("ffn_gate_inp_shexp.weight",), lambda gate: gate.reshape(1, -1))
}
_SHARED_EXPERTS = {ours.replace("expert.", "experts."): theirs for ours, theirs in _SHARED.items()}
_CORRECTED = plain({"mlp.gate.e_score_correction_bias": "exp_probs_b.bias"})
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
_UNFOLDED: Made = {"self_attn.kv_b_proj.weight": (("attn_k_b.weight", "attn_v_b.weight"), keys_and_values)}
_DELTA = {
    **{f"linear_attn.in_proj_{ours}": theirs for ours, theirs in (("qkv", "attn_qkv"), ("z", "attn_gate"))},
    **{f"linear_attn.in_proj_{ours}": theirs for ours, theirs in (("a", "ssm_alpha"), ("b", "ssm_beta"))},
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
_OF_DELTA: Made = {
    "linear_attn.conv1d.weight": (("ssm_conv1d.weight",), lambda taps: taps[:, None]),
    "linear_attn.A_log": (("ssm_a",), lambda rates: np.log(-rates)),
    **plain({"linear_attn.dt_bias": "ssm_dt.bias"}),
}
_BETA_AND_ALPHA = ("linear_attn.in_proj_b", "linear_attn.in_proj_a")
_FEED_FORWARD = {
    f"feed_forward.{ours}": f"ffn_{theirs}" for ours, theirs in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
}
_LFM2 = (
    {ours.replace("o_proj", "out_proj"): theirs for ours, theirs in ATTENTION.items()}
    | {ours.replace("norm", "layernorm"): theirs for ours, theirs in QUERY_NORMS.items()}
    | {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm"}
    | {"conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj"}
    | _FEED_FORWARD
)
_OF_LFM2: Made = {"conv.conv.weight": (("shortconv.conv.weight",), lambda taps: taps[:, None])}


def _interleaved(part: int) -> Callable[[Config], Order]:
    """Qwen3-Next: the rows of the numbers of each key head's value heads, first those of ``b``, then of ``a``."""

    def rows(config: Config) -> Order:
        groups = config["linear_num_key_heads"]
        return np.arange(2 * config["linear_num_value_heads"]).reshape(groups, 2, -1)[:, part].reshape(-1)

    return rows


_SCAN = {"mamba.in_proj": "ssm_in", "mamba.out_proj": "ssm_out"}


def _third(part: int) -> Callable[[Config], Order]:
    """The rows of queries, keys or values, which lie one below the other."""

    def rows(config: Config) -> Order:
        heads = (config["num_attention_heads"], *[config["num_key_value_heads"]] * 2)
        begin, width = sum(heads[:part]), config["head_dim"]
        return np.arange(begin * width, (begin + heads[part]) * width)

    return rows


_QUERIES_KEYS_VALUES = tuple(f"self_attn.{name}_proj" for name in "qkv")
_NEMOTRON_H = Architecture(
    "nemotron_h",
    {ours.replace("self_attn", "mixer"): theirs for ours, theirs in ATTENTION.items()}
    | {"norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.out_proj": "ssm_out", "mixer.gate": "ffn_gate_inp"}
    | {f"mixer.{part}_proj": f"ffn_{part}" for part in ("up", "down")}
    | {f"mixer.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("up", "down")},
    recurrent.nemotron_h,
    made=of_scan("mixer")
    | plain({f"mixer.experts.{part}_proj": f"ffn_{part}_exps.weight" for part in ("up", "down")})
    | plain({"mixer.gate.e_score_correction_bias": "exp_probs_b.bias"}),
    varied=("attention.head_count_kv", "feed_forward_length"),
    outside={"model.embeddings": "token_embd", "model.norm_f": "output_norm"},
)


def _mixture(
    model_type: str, names: dict[str, str], config: Configure, made: Made | None = None, **changes: Any
) -> Architecture:
    """Experts in most layers, with a router of the usual name."""
    return Architecture(model_type, ATTENTION | _ROUTER | names, config, made=of_experts() | (made or {}), **changes)


def _granite_hybrid(shared: str, experts: Made) -> Architecture:
    """``shared``: how the names of the MLP end that every row takes."""
    both = (f"ffn_gate{shared}.weight", f"ffn_up{shared}.weight")
    return Architecture(
        "granitemoehybrid",
        ATTENTION
        | IN_FRONT
        | _SCAN
        | {"block_sparse_moe.router": "ffn_gate_inp", "shared_mlp.output_linear": f"ffn_down{shared}"},
        recurrent.granite_hybrid,
        turned=True,
        made=of_scan() | {"shared_mlp.input_linear.weight": (both, below)} | experts,
        varied=("attention.head_count_kv",),
    )


ARCHITECTURES = {  # architectures by their name in the file
    "llama": Architecture("llama", STANDARD, turned=True),
    "qwen2": Architecture("qwen2", STANDARD),
    "qwen3": Architecture("qwen3", STANDARD | QUERY_NORMS),
    "mistral3": Architecture("ministral3", STANDARD, configs.mistral3, turned=True),
    "arcee": Architecture("arcee", ATTENTION | UNGATED | IN_FRONT, configs.arcee, turned=True),
    "qwen2vl": Architecture("qwen2", STANDARD),
    "qwen3vl": Architecture("qwen3", STANDARD | QUERY_NORMS),
    "seed_oss": Architecture("seed_oss", ATTENTION | MLP | _BEHIND_ATTENTION),
    "ernie4_5": Architecture("ernie4_5", STANDARD),
    "hunyuan-dense": Architecture("hunyuan_v1_dense", STANDARD | _LATE_NORMS),
    "exaone4": Architecture("exaone4", ATTENTION | MLP | QUERY_NORMS | _BEHIND, configs.exaone4),
    "internlm2": Architecture("llama", STANDARD, turned=True),
    "exaone": Architecture("llama", STANDARD, configs.exaone),
    "minicpm": Architecture("granite", STANDARD, configs.minicpm, turned=True),
    "apertus": Architecture(
        "apertus",
        ATTENTION | UNGATED | QUERY_NORMS | {"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"},
        configs.apertus,
        numbers={f"mlp.act_fn.alpha_{sign}": f"xielu.alpha_{sign}" for sign in "pn"},
        constants={f"mlp.act_fn.{key}": value for key, value in configs.XIELU.items()},
    ),
    "chatglm": Architecture(
        "glm",
        {**dict.fromkeys(_QUERIES_KEYS_VALUES, "attn_qkv"), "self_attn.o_proj": "attn_output"} | _FUSED_MLP | IN_FRONT,
        rows={part: _third(index) for index, part in enumerate(_QUERIES_KEYS_VALUES)},
    ),
    "starcoder2": Architecture(
        "starcoder2", ATTENTION | IN_FRONT | {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}, configs.starcoder2
    ),
    **gguf_gpt.ARCHITECTURES,
    "command-r": Architecture(
        "cohere", ATTENTION | MLP | QUERY_NORMS | {"input_layernorm": "attn_norm"}, configs.command_r
    ),
    "gemma": Architecture("gemma", STANDARD, configs.gemma, offset=True),
    "gemma2": Architecture("gemma2", ATTENTION | MLP | _SANDWICH, configs.gemma2, offset=True),
    "gemma3": Architecture("gemma3_text", ATTENTION | MLP | _SANDWICH | QUERY_NORMS, configs.gemma3, offset=True),
    "gemma4": Architecture(
        "gemma4_text",
        ATTENTION | MLP | _SANDWICH | QUERY_NORMS | _LAYER_INPUTS | _BESIDE_MLP,
        configs.gemma4,
        made=plain(_OF_GEMMA4),
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
        configs.phi3,
    ),
    "smollm3": Architecture("smollm3", STANDARD, configs.smollm3, turned=True),
    "granite": Architecture("granite", STANDARD, configs.granite, turned=True),
    "glm4": Architecture("glm4", ATTENTION | _FUSED_MLP | _GLM4),
    "olmo2": Architecture("olmo2", ATTENTION | MLP | QUERY_NORMS | _BEHIND),
    "cohere2": Architecture("cohere2", ATTENTION | MLP | {"input_layernorm": "attn_norm"}, configs.cohere2),
    # with experts
    "qwen3moe": _mixture("qwen3_moe", QUERY_NORMS | IN_FRONT, configs.experts),
    "qwen3vlmoe": _mixture("qwen3_moe", QUERY_NORMS | IN_FRONT, configs.experts),
    "mellum": _mixture("mellum", QUERY_NORMS | IN_FRONT, configs.mellum),
    "exaone-moe": _mixture("exaone_moe", STANDARD | QUERY_NORMS | _SHARED_EXPERTS, configs.exaone_moe, _CORRECTED),
    "laguna": _mixture(
        "laguna",
        STANDARD | QUERY_NORMS | _SHARED_EXPERTS | {"self_attn.g_proj": "attn_gate"},
        configs.laguna,
        _CORRECTED,
        varied=("attention.head_count",),
    ),
    "afmoe": Architecture(
        "afmoe",
        ATTENTION
        | MLP
        | QUERY_NORMS
        | {"self_attn.gate_proj": "attn_gate", "mlp.router.gate": "ffn_gate_inp"}
        | _SHARED_EXPERTS
        | {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
        | {"pre_mlp_layernorm": "ffn_norm", "post_mlp_layernorm": "post_ffw_norm"},
        configs.afmoe,
        made=of_experts() | plain({"mlp.expert_bias": "exp_probs_b.bias"}),
    ),
    "qwen2moe": _mixture("qwen2_moe", IN_FRONT | _SHARED, configs.qwen2_moe, _SHARED_GATE),
    "dots1": _mixture("dots1", STANDARD | QUERY_NORMS | _SHARED_EXPERTS, configs.ranked, _CORRECTED),
    "minimax-m2": _mixture(
        "minimax_m2",
        QUERY_NORMS | IN_FRONT,
        configs.minimax,
        plain({"mlp.e_score_correction_bias": "exp_probs_b.bias"}),
    ),
    "ernie4_5-moe": _mixture(
        "ernie4_5_moe",
        STANDARD | _SHARED_EXPERTS,
        configs.ernie_moe,
        {"mlp.gate.moe_statics.e_score_correction_bias": (("exp_probs_b.bias",), lambda bias: bias.reshape(1, -1))},
    ),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        ATTENTION
        | IN_FRONT
        | _LATE_NORMS
        | {"mlp.gate.wg": "ffn_gate_inp"}
        | {ours.replace("shared_expert", "shared_mlp"): theirs for ours, theirs in _SHARED.items()},
        configs.hunyuan_moe,
        made=of_experts(),
    ),
    "olmoe": _mixture("olmoe", QUERY_NORMS | IN_FRONT, configs.olmoe),
    "granitemoe": Architecture(
        "granitemoe",
        ATTENTION | IN_FRONT | {"block_sparse_moe.router": "ffn_gate_inp"},
        configs.granite_moe,
        turned=True,
        made=of_experts("block_sparse_moe") | _GRANITE_SHARED,
    ),
    "granitehybrid": _granite_hybrid("", {}),
    "falcon-h1": Architecture(
        "falcon_h1",
        ATTENTION
        | {ours.replace("mlp.", "feed_forward."): theirs for ours, theirs in MLP.items()}
        | {"input_layernorm": "attn_norm"}
        | _SCAN,
        recurrent.falcon_h1,
        made=of_scan() | plain({"pre_ff_layernorm.weight": "ffn_norm"}),
        outside={"model.final_layernorm": "output_norm"},
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "glm4moe": _mixture(
        "glm4_moe", MLP | QUERY_NORMS | _BEHIND_ATTENTION | _SHARED_EXPERTS, configs.glm4_moe, _CORRECTED
    ),
    "llama4": Architecture(
        "llama4_text",
        ATTENTION
        | IN_FRONT
        | {"feed_forward.router": "ffn_gate_inp"}
        | {ours.replace("mlp.", "feed_forward."): theirs for ours, theirs in (MLP | _SHARED).items()},
        configs.llama4,
        made={
            "feed_forward.experts.gate_up_proj": (
                ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
                lambda gate, up: swapped(stacked(gate, up)),
            ),
            "feed_forward.experts.down_proj": (("ffn_down_exps.weight",), swapped),
        },
    ),
    "deepseek2": Architecture(
        "deepseek_v3",
        IN_FRONT | MLP | _ROUTER | _SHARED_EXPERTS | _LATENT,
        configs.deepseek2,
        made=of_experts() | _CORRECTED | _UNFOLDED,
    ),
    "mistral4": Architecture(
        "mistral4",
        IN_FRONT | MLP | _ROUTER | _SHARED_EXPERTS | _LATENT,
        configs.mistral4,
        made=of_experts() | _UNFOLDED,
    ),
    "minicpm3": Architecture("minicpm3", IN_FRONT | MLP | _LATENT, configs.minicpm3),
    "hy_v3": _mixture(
        "hy_v3",
        STANDARD | QUERY_NORMS | _SHARED_EXPERTS,
        configs.hy3,
        plain({"mlp.e_score_correction_bias": "exp_probs_b"}),
    ),
    "cohere2moe": _mixture(
        "cohere2_moe", MLP | _SHARED_EXPERTS | {"input_layernorm": "attn_norm"}, configs.cohere2_moe
    ),
    "gpt-oss": Architecture(
        "gpt_oss",
        ATTENTION | _BEHIND_ATTENTION | {"mlp.router": "ffn_gate_inp"},
        configs.gpt_oss,
        made={
            **plain({"self_attn.sinks": "attn_sinks.weight", "mlp.experts.down_proj_bias": "ffn_down_exps.bias"}),
            "mlp.experts.gate_up_proj": (("ffn_gate_exps.weight", "ffn_up_exps.weight"), woven),
            "mlp.experts.gate_up_proj_bias": (("ffn_gate_exps.bias", "ffn_up_exps.bias"), woven),
            "mlp.experts.down_proj": (("ffn_down_exps.weight",), swapped),
        },
    ),
    # with recurrent layers
    **recurrent.MAMBA,
    "qwen35": Architecture(
        "qwen3_5_text",
        ATTENTION | QUERY_NORMS | MLP | _BEHIND_ATTENTION | _DELTA,
        recurrent.qwen35,
        offset=True,
        made=_OF_DELTA,
    ),
    "qwen35moe": _mixture(
        "qwen3_5_moe_text",
        QUERY_NORMS | _BEHIND_ATTENTION | _SHARED | _DELTA,
        recurrent.qwen35_moe,
        _OF_DELTA | _SHARED_GATE,
        offset=True,
    ),
    "qwen3next": _mixture(
        "qwen3_5_moe_text",
        QUERY_NORMS | _BEHIND_ATTENTION | _SHARED | _DELTA | dict.fromkeys(_BETA_AND_ALPHA, "ssm_ba"),
        recurrent.qwen3_next,
        _OF_DELTA | _SHARED_GATE,
        offset=True,
        rows={part: _interleaved(index) for index, part in enumerate(_BETA_AND_ALPHA)},
    ),
    "lfm2": Architecture(
        "lfm2",
        _LFM2,
        recurrent.lfm2,
        made=_OF_LFM2,
        varied=("attention.head_count_kv",),
        outside={"model.embedding_norm": "token_embd_norm"},
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        _LFM2 | {"feed_forward.gate": "ffn_gate_inp"},
        recurrent.lfm2_moe,
        made=_OF_LFM2 | of_experts("feed_forward") | plain({"feed_forward.expert_bias": "exp_probs_b.bias"}),
        varied=("attention.head_count_kv",),
        outside={"model.embedding_norm": "token_embd_norm"},
    ),
}


def _neighbours(heads: str) -> Callable[[Config], Order]:
    """GLM with eyes: what a rotation turns together lies half of its dimensions apart in the file."""

    def rows(config: Config) -> Order:
        width = config["head_dim"]
        turned = int(width * config["rope_parameters"].get("partial_rotary_factor", 1.0))
        own = np.concatenate([np.arange(turned).reshape(2, -1).T.reshape(-1), np.arange(turned, width)])
        found: Order = (np.arange(config[heads])[:, None] * width + own).reshape(-1)
        return found

    return rows


_TURNED = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
WITH_EYES = {  # the same in files of vision models, with positions in sections
    "glm4": replace(ARCHITECTURES["glm4"], rows={part: _neighbours(heads) for part, heads in _TURNED.items()})
}
MIXTURES = {  # the same with experts
    "llama": _mixture("mixtral", IN_FRONT, configs.mixtral, turned=True),
    "granitehybrid": _granite_hybrid("_shexp", of_experts("block_sparse_moe")),
}
