"""GGUF architectures with recurrent layers: gated delta nets and short convolutions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from actors.engines.weights.gguf import GGUF
from actors.engines.weights.gguf_architecture import (
    ATTENTION,
    BEHIND_ATTENTION,
    MLP,
    QUERY_NORMS,
    Architecture,
    Config,
    Made,
    Order,
)
from actors.engines.weights.gguf_mixtures import ROUTER, SHARED, SHARED_GATE, experts, of_experts, qwen2_moe


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
    return _qwen35(file, config) | qwen2_moe(file, config) | {"norm_topk_prob": True}


def _qwen3_next(file: GGUF, config: Config) -> Config:
    """Qwen 3.5 computes the same of other files, with heads in the same places."""
    return _qwen35_moe(file, config) | {"tiled_value_heads": False}


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
        | experts(file, config)
        | {"num_dense_layers": file.of_architecture("leading_dense_block_count", 0), "use_expert_bias": True}
    )


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


def _woven(part: int) -> Callable[[Config], Order]:
    """Qwen3-Next: the rows of the numbers of each key head's value heads, first those of ``b``, then of ``a``."""

    def rows(config: Config) -> Order:
        groups = config["linear_num_key_heads"]
        return np.arange(2 * config["linear_num_value_heads"]).reshape(groups, 2, -1)[:, part].reshape(-1)

    return rows


RECURRENT = {
    "qwen35": Architecture(
        "qwen3_5_text",
        ATTENTION | QUERY_NORMS | MLP | BEHIND_ATTENTION | _DELTA,
        _qwen35,
        offset=True,
        made=_OF_DELTA,
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        ATTENTION | QUERY_NORMS | BEHIND_ATTENTION | ROUTER | SHARED | _DELTA,
        _qwen35_moe,
        offset=True,
        made=_OF_DELTA | of_experts() | SHARED_GATE,
    ),
    "qwen3next": Architecture(
        "qwen3_5_moe_text",
        ATTENTION
        | QUERY_NORMS
        | BEHIND_ATTENTION
        | ROUTER
        | SHARED
        | _DELTA
        | {"linear_attn.in_proj_a": "ssm_ba", "linear_attn.in_proj_b": "ssm_ba"},
        _qwen3_next,
        offset=True,
        made=_OF_DELTA | of_experts() | SHARED_GATE,
        rows={"linear_attn.in_proj_a": _woven(1), "linear_attn.in_proj_b": _woven(0)},
    ),
    "lfm2": Architecture(
        "lfm2",
        _LFM2,
        _lfm2,
        made=_OF_LFM2,
        varied=("attention.head_count_kv",),
        outside={"model.embedding_norm": "token_embd_norm"},
    ),
    "lfm2moe": Architecture(
        "lfm2_moe",
        _LFM2 | {"feed_forward.gate": "ffn_gate_inp"},
        _lfm2_moe,
        made=_OF_LFM2
        | of_experts("feed_forward")
        | {"feed_forward.expert_bias": (("exp_probs_b.bias",), lambda bias: bias)},
        varied=("attention.head_count_kv",),
        outside={"model.embedding_norm": "token_embd_norm"},
    ),
}
