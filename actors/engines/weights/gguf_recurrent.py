"""Configurations of GGUF architectures with recurrent layers, in Hugging Face's words."""

from __future__ import annotations

import numpy as np

from actors.engines.weights.gguf import GGUF
from actors.engines.weights.gguf_configs import Config, check_sigmoid, experts, granite, qwen2_moe, ranked
from actors.engines.weights.gguf_parts import (
    ATTENTION,
    MLP,
    Architecture,
    Made,
    of_convolution,
    of_experts,
    of_scan,
    plain,
)
from protocols.errors import ModelError


def granite_hybrid(file: GGUF, config: Config) -> Config:
    """Granite 4: layers without heads of keys are Mamba 2."""
    of = file.of_architecture
    heads, inner = of("ssm.time_step_rank"), of("ssm.inner_size")
    keys = np.broadcast_to(of("attention.head_count_kv"), config["num_hidden_layers"])
    return granite(file, config) | {
        "attention_multiplier": of("attention.scale", config["head_dim"] ** -0.5),
        "layer_types": ["full_attention" if one else "linear_attention" for one in keys],
        "position_embedding_type": "rope" if of("rope.scaling.finetuned", False) else "nope",
        "num_local_experts": of("expert_count", 0),
        "num_experts_per_tok": of("expert_used_count", 0),
        "shared_intermediate_size": of("expert_shared_feed_forward_length", config["intermediate_size"]),
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": of("ssm.group_count"),
        "mamba_d_state": of("ssm.state_size"),
        "mamba_d_conv": of("ssm.conv_kernel"),
        "mamba_expand": inner // config["hidden_size"],
        "time_step_limit": (0.0, float("inf")),
        "mamba_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in file.tensors),
    }


def falcon_h1(file: GGUF, config: Config) -> Config:
    """The multipliers of the configuration are inside of the file's matrices."""
    of = file.of_architecture
    heads, inner = of("ssm.time_step_rank"), of("ssm.inner_size")
    ones = ("embedding", "lm_head", "attention_in", "attention_out", "key", "ssm_in", "ssm_out")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_ssm": inner,
        "mamba_n_groups": of("ssm.group_count"),
        "mamba_d_state": of("ssm.state_size"),
        "mamba_d_conv": of("ssm.conv_kernel"),
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in file.tensors,
        "mamba_norm_before_gate": False,
        "mamba_proj_bias": False,
        "attention_bias": False,
        "mamba_conv_bias": "blk.0.ssm_conv1d.bias" in file.tensors,
        "time_step_limit": (0.0, float("inf")),
        **{f"{name}_multiplier": 1.0 for name in ones},
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    }


def nemotron_h(file: GGUF, config: Config) -> Config:
    """Layers with heads of keys are attention, those with an inner width an MLP or experts, the others Mamba 2."""
    of, layers = file.of_architecture, config["num_hidden_layers"]
    heads, inner = (np.broadcast_to(of(key), layers) for key in ("attention.head_count_kv", "feed_forward_length"))
    fed = "moe" if of("expert_count", 0) else "mlp"
    own = of("ssm.time_step_rank")
    return {
        **(ranked(file, config) if fed == "moe" else {}),
        "layers_block_type": [
            "full_attention" if keys else fed if wide else "linear_attention"
            for keys, wide in zip(heads, inner, strict=True)
        ],
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "layer_norm_epsilon": of("attention.layer_norm_epsilon", config["rms_norm_eps"]),
        "mamba_num_heads": own,
        "mamba_head_dim": of("ssm.inner_size") // own,
        "n_groups": of("ssm.group_count"),
        "ssm_state_size": of("ssm.state_size"),
        "conv_kernel": of("ssm.conv_kernel"),
        "moe_shared_expert_intermediate_size": of("expert_shared_feed_forward_length", 0),
        "moe_latent_size": of("moe_latent_size"),
        "time_step_min": 0.001,  # every published model's
        "use_conv_bias": any(name.endswith("ssm_conv1d.bias") for name in file.tensors),
    }


def qwen35(file: GGUF, config: Config) -> Config:
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


def qwen35_moe(file: GGUF, config: Config) -> Config:
    return qwen35(file, config) | qwen2_moe(file, config) | {"norm_topk_prob": True}


def qwen3_next(file: GGUF, config: Config) -> Config:
    """Qwen 3.5 computes the same of other files, with heads in the same places."""
    return qwen35_moe(file, config) | {"tiled_value_heads": False}


def lfm2(file: GGUF, config: Config) -> Config:
    heads = np.broadcast_to(file.of_architecture("attention.head_count_kv"), config["num_hidden_layers"])
    return {
        "layer_types": ["full_attention" if one else "conv" for one in heads],
        "conv_L_cache": file.of_architecture("shortconv.l_cache"),
        "conv_bias": False,
        "norm_eps": config["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
    }


def lfm2_moe(file: GGUF, config: Config) -> Config:
    check_sigmoid(file)
    return (
        lfm2(file, config)
        | experts(file, config)
        | {"num_dense_layers": file.of_architecture("leading_dense_block_count", 0), "use_expert_bias": True}
        | {"routed_scaling_factor": 1.0}
    )


def _alone(file: GGUF, config: Config) -> Config:
    """What Mamba 1 and 2 share: no attention, no MLP."""
    of = file.of_architecture
    return {
        "state_size": of("ssm.state_size"),
        "conv_kernel": of("ssm.conv_kernel"),
        "expand": of("ssm.inner_size") // config["hidden_size"],
        "layer_norm_epsilon": config["rms_norm_eps"],
        "hidden_act": "silu",
        "use_bias": False,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in file.tensors,
    }


def _mamba(file: GGUF, config: Config) -> Config:
    """Falcon Mamba says that it norms; by what, no file says, and all that are published have the same."""
    inner, rank = (file.of_architecture(f"ssm.{key}") for key in ("inner_size", "time_step_rank"))
    falcon = {"model_type": "falcon_mamba", "mixer_rms_eps": 1e-6} if file.of_architecture("ssm.dt_b_c_rms") else {}
    return _alone(file, config) | {"intermediate_size": inner, "time_step_rank": rank} | falcon


def _mamba2(file: GGUF, config: Config) -> Config:
    heads = file.of_architecture("ssm.time_step_rank")
    return _alone(file, config) | {
        "num_heads": heads,
        "head_dim": file.of_architecture("ssm.inner_size") // heads,
        "n_groups": file.of_architecture("ssm.group_count"),
        "time_step_limit": (0.0, float("inf")),
    }


def _jamba(file: GGUF, config: Config) -> Config:
    of, layers = file.of_architecture, config["num_hidden_layers"]
    attends = np.flatnonzero(np.broadcast_to(of("attention.head_count_kv"), layers))
    chooses = np.array([layer for layer in range(layers) if f"blk.{layer}.ffn_gate_inp.weight" in file.tensors], int)
    return {
        **_every(file, "attn_layer", attends, layers),
        **_every(file, "expert_layer", chooses, layers),
        "num_experts": of("expert_count", 0) if len(chooses) else 1,
        "num_experts_per_tok": of("expert_used_count", 0),
        "mamba_expand": of("ssm.inner_size") // config["hidden_size"],
        "mamba_d_state": of("ssm.state_size"),
        "mamba_d_conv": of("ssm.conv_kernel"),
        "mamba_dt_rank": of("ssm.time_step_rank"),
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    }


def _every(file: GGUF, name: str, chosen: np.ndarray, layers: int) -> Config:
    """The period and the first of some layers, as transformers has it. Raises ModelError where they have none."""
    period = int(chosen[1] - chosen[0]) if len(chosen) > 1 else layers
    first = int(chosen[0]) if len(chosen) else layers
    if list(chosen) != list(range(first, layers, period)):
        raise ModelError(
            f"{file.path} has layers of one kind at {', '.join(map(str, chosen))}, which is no period; choose another "
            "file, or the model's safetensors"
        )
    return {f"{name}_period": period, f"{name}_offset": first}


def _selective(part: str) -> Made:
    """Mamba 1 by its name in a layer."""
    rates: Made = {f"{part}.A_log": (("ssm_a",), lambda rates: np.log(-rates))}
    return of_convolution(part) | rates | plain({f"{part}.D": "ssm_d"})


def _matrices(part: str) -> dict[str, str]:
    return {f"{part}.{ours}": f"ssm_{theirs}" for ours, theirs in _PROJECTIONS.items()}


_PROJECTIONS = {"in_proj": "in", "x_proj": "x", "dt_proj": "dt", "out_proj": "out"}
_BACKBONE = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm"}
_ABSENT = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
MAMBA = {
    "mamba": Architecture(
        "mamba",
        {"norm": "attn_norm"} | _matrices("mixer"),
        _mamba,
        made=_selective("mixer"),
        varied=_ABSENT,
        outside=_BACKBONE,
        layers="backbone.layers",
    ),
    "mamba2": Architecture(
        "mamba2",
        {"norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.out_proj": "ssm_out"},
        _mamba2,
        made=of_scan("mixer"),
        varied=_ABSENT,
        outside=_BACKBONE,
        layers="backbone.layers",
    ),
    "jamba": Architecture(
        "jamba",
        ATTENTION
        | {ours.replace("mlp.", "feed_forward."): theirs for ours, theirs in MLP.items()}
        | {"input_layernorm": "attn_norm", "pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp"}
        | _matrices("mamba")
        | {f"mamba.{one}_layernorm": f"ssm_{one}_norm" for one in ("dt", "b", "c")},
        _jamba,
        made=_selective("mamba") | of_experts("feed_forward"),
        varied=("attention.head_count_kv",),
        outside={"model.final_layernorm": "output_norm"},
    ),
}
