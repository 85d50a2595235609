"""Names of a GGUF file's metadata in Hugging Face's configurations, besides the names that all architectures share."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.engines.weights.gguf import GGUF
from protocols.errors import ModelError

Config = dict[str, Any]

_MAVERICK = 128  # experts: the only number that tells it from Scout
_SOFTMAX, _SIGMOID = 1, 2  # values of expert_gating_func


def _every(period: int, layers: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]


def gemma2(file: GGUF, config: Config) -> Config:
    # the 27B scales by what a head would have, https://arxiv.org/abs/2408.00118
    big = config["num_hidden_layers"] == 46
    width = config["hidden_size"] // config["num_attention_heads"] if big else config["head_dim"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width,
        "sliding_window": file.of_architecture("attention.sliding_window", 4096),
        "attn_logit_softcapping": file.of_architecture("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.of_architecture("final_logit_softcapping", 30.0),
        "layer_types": _every(2, config["num_hidden_layers"]),
    }


def gemma3(file: GGUF, config: Config) -> Config:
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


def gemma4(file: GGUF, config: Config) -> Config:
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
        "num_key_value_heads": heads[kinds.index("sliding_attention")],
        "per_layer_config": {
            str(layer): {"head_dim": of("attention.key_length"), "num_key_value_heads": heads[layer]}
            for layer, kind in enumerate(kinds)
            if kind == "full_attention"
        },
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


def phi3(file: GGUF, config: Config) -> Config:
    before = file.of_architecture("rope.scaling.original_context_length", config["max_position_embeddings"])
    window = file.of_architecture("attention.sliding_window") or None  # 0: none
    return {"sliding_window": window, "original_max_position_embeddings": before}


def granite(file: GGUF, config: Config) -> Config:
    return {
        "embedding_multiplier": file.of_architecture("embedding_scale", 1.0),
        "residual_multiplier": file.of_architecture("residual_scale", 1.0),
        "attention_multiplier": file.of_architecture("attention.scale", 1.0),
        "logits_scaling": file.of_architecture("logit_scale", 1.0),
    }


def minicpm(file: GGUF, config: Config) -> Config:
    """The first files name no multipliers: the models of that time had these."""
    of = file.of_architecture
    return {
        "embedding_multiplier": of("embedding_scale", 12.0),
        "residual_multiplier": of("residual_scale", 1.4 / config["num_hidden_layers"] ** 0.5),
        "logits_scaling": of("logit_scale", config["hidden_size"] / 256),
        "attention_multiplier": config["head_dim"] ** -0.5,
    }


def exaone(file: GGUF, config: Config) -> Config:
    return {"rms_norm_eps": file.of_architecture("attention.layer_norm_epsilon", config["rms_norm_eps"])}


XIELU = {"beta": 0.5, "eps": -1e-6}  # constants of the activation in transformers


def apertus(file: GGUF, config: Config) -> Config:
    """Raises ModelError for an activation with other constants than transformers computes it with."""
    for key, usual in XIELU.items():
        found = np.unique(file.metadata.get(f"xielu.{key}", usual))
        if not np.allclose(found, usual):
            raise ModelError(
                f"{file.path} has xielu.{key} = {found[0]}, which duoactor does not compute for this architecture; "
                "choose a file without it, or the model's safetensors"
            )
    return {"hidden_act": "xielu"}


def gemma(file: GGUF, config: Config) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh"}


def arcee(file: GGUF, config: Config) -> Config:
    return {"hidden_act": "relu2"}


def smollm3(file: GGUF, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    turned = [int((i + 1) % 4 != 0) for i in range(layers)]
    return {"no_rope_layers": turned, "layer_types": ["full_attention"] * layers}


def command_r(file: GGUF, config: Config) -> Config:
    return {
        "layer_norm_eps": file.of_architecture("attention.layer_norm_epsilon", 1e-5),
        "logit_scale": file.of_architecture("logit_scale", 1.0),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
    }


def cohere2(file: GGUF, config: Config) -> Config:
    window = file.of_architecture("attention.sliding_window", 4096)
    kinds = _every(4, config["num_hidden_layers"])
    return command_r(file, config) | {"sliding_window": window, "layer_types": kinds}


def starcoder2(file: GGUF, config: Config) -> Config:
    epsilon = file.of_architecture("attention.layer_norm_epsilon", 1e-5)
    return {"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": epsilon, "sliding_window": None}


def exaone4(file: GGUF, config: Config) -> Config:
    window = file.of_architecture("attention.sliding_window")
    local = file.of_architecture("attention.sliding_window_pattern", [window is not None] * config["num_hidden_layers"])
    kinds = ["sliding_attention" if one else "full_attention" for one in local]
    return {"sliding_window": window, "layer_types": kinds}


def mistral3(file: GGUF, config: Config) -> Config:
    """Ministral 3, or Mistral Small 3, which has no query scaling."""
    of, rope = file.of_architecture, config["rope_parameters"]
    share = of("attention.temperature_scale")
    if not share or rope["rope_type"] != "yarn":
        return {"model_type": "mistral", "sliding_window": None}
    more = {"mscale": 1.0, "mscale_all_dim": of("rope.scaling.yarn_log_multiplier", 1.0), "llama_4_scaling_beta": share}
    beta = {
        f"beta_{name}": of(f"rope.scaling.yarn_beta_{name}", most) for name, most in (("fast", 32.0), ("slow", 1.0))
    }
    return {"rope_parameters": rope | more | beta}


def experts(file: GGUF, config: Config) -> Config:
    of = file.of_architecture
    return {
        "num_experts": of("expert_count"),
        "num_experts_per_tok": of("expert_used_count"),
        "moe_intermediate_size": of("expert_feed_forward_length", config["intermediate_size"]),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def qwen2_moe(file: GGUF, config: Config) -> Config:
    shared = file.of_architecture("expert_shared_feed_forward_length", config["intermediate_size"])
    return experts(file, config) | {"norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def olmoe(file: GGUF, config: Config) -> Config:
    return experts(file, config) | {"norm_topk_prob": False}


def mixtral(file: GGUF, config: Config) -> Config:
    return {
        "num_local_experts": file.of_architecture("expert_count"),
        "num_experts_per_tok": file.of_architecture("expert_used_count"),
    }


def minimax(file: GGUF, config: Config) -> Config:
    check_sigmoid(file)
    return mixtral(file, config) | {"intermediate_size": file.of_architecture("expert_feed_forward_length")}


def hunyuan_moe(file: GGUF, config: Config) -> Config:
    of = file.of_architecture
    return {"num_experts": of("expert_count"), "moe_topk": of("expert_used_count")}


def ernie_moe(file: GGUF, config: Config) -> Config:
    of = file.of_architecture
    return {
        "moe_num_experts": of("expert_count"),
        "moe_k": of("expert_used_count"),
        "moe_intermediate_size": of("expert_feed_forward_length"),
        "moe_num_shared_experts": of("expert_shared_count", 0),
        "moe_layer_interval": of("interleave_moe_layer_step", 1),
        "moe_layer_start_index": of("leading_dense_block_count", 0),
        "moe_layer_end_index": config["num_hidden_layers"] - 1,
    }


def granite_moe(file: GGUF, config: Config) -> Config:
    inner = file.of_architecture("expert_shared_feed_forward_length")
    shared = {"model_type": "granitemoeshared", "shared_intermediate_size": inner} if inner else {}
    return granite(file, config) | mixtral(file, config) | shared


def gpt_oss(file: GGUF, config: Config) -> Config:
    rope = config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        rope = {**rope, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    layers = config["num_hidden_layers"]
    return {
        "rope_parameters": rope,
        **mixtral(file, config),
        "intermediate_size": file.of_architecture("expert_feed_forward_length", config["intermediate_size"]),
        "sliding_window": file.of_architecture("attention.sliding_window", 128),
        "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)],
    }


def ranked(file: GGUF, config: Config) -> Config:
    """As DeepSeek's experts: after a few dense layers, chosen by groups."""
    check_sigmoid(file)
    return _ranks(file)


def _ranks(file: GGUF) -> Config:
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


def _by_kind(file: GGUF, config: Config, kinds: list[str]) -> Config:
    """Rotations that differ between layers with windows and others."""
    of, width = file.of_architecture, config["head_dim"]
    local: Config = {"rope_type": "default", "rope_theta": of("rope.freq_base_swa", of("rope.freq_base"))}
    if (turned := of("rope.dimension_count_swa", width)) != width:
        local["partial_rotary_factor"] = turned / width
    rope = {"full_attention": config["rope_parameters"], "sliding_attention": local}
    return {"layer_types": kinds, "rope_parameters": {kind: rope[kind] for kind in dict.fromkeys(kinds)}}


def mellum(file: GGUF, config: Config) -> Config:
    window = exaone4(file, config)
    return experts(file, config) | window | _by_kind(file, config, window["layer_types"])


def check_sigmoid(file: GGUF) -> None:
    """Raise ModelError for experts that are not chosen by sigmoids."""
    if (found := file.of_architecture("expert_gating_func", _SIGMOID)) != _SIGMOID:
        raise ModelError(
            f"{file.path} has {file.architecture}.expert_gating_func = {found}, which duoactor does not compute for "
            "this architecture; choose a file without it, or the model's safetensors"
        )


def exaone_moe(file: GGUF, config: Config) -> Config:
    ranks = ranked(file, config)
    dense = ranks.pop("first_k_dense_replace")
    kinds = ["dense" if layer < dense else "sparse" for layer in range(config["num_hidden_layers"])]
    counts = {"num_experts": ranks.pop("n_routed_experts"), "num_shared_experts": ranks.pop("n_shared_experts")}
    return ranks | counts | exaone4(file, config) | {"mlp_layer_types": kinds}


def laguna(file: GGUF, config: Config) -> Config:
    """Every fourth layer from the first on has no window, unless the file says another pattern."""
    check_sigmoid(file)
    of, layers = file.of_architecture, config["num_hidden_layers"]
    window = of("attention.sliding_window", 0)
    local = of("attention.sliding_window_pattern", [bool(window and layer % 4) for layer in range(layers)])
    kinds = ["sliding_attention" if one else "full_attention" for one in local]
    dense = of("leading_dense_block_count", 0)
    return {
        **experts(file, config),
        **_by_kind(file, config, kinds),
        "sliding_window": window,
        "num_attention_heads_per_layer": np.broadcast_to(of("attention.head_count"), layers).tolist(),
        "shared_expert_intermediate_size": of("expert_shared_feed_forward_length"),
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(layers)],
        "moe_routed_scaling_factor": of("expert_weights_scale", 1.0),
        "moe_router_logit_softcapping": of("router_logit_softcapping", 0.0),
        "gating": True,
    }


def afmoe(file: GGUF, config: Config) -> Config:
    """Trinity. Every fourth layer has no window."""
    check_sigmoid(file)
    of, layers = file.of_architecture, config["num_hidden_layers"]
    window = of("attention.sliding_window")
    return {
        **experts(file, config),
        "sliding_window": window,
        "layer_types": _every(4, layers) if window else ["full_attention"] * layers,
        "num_dense_layers": of("leading_dense_block_count", 0),
        "num_shared_experts": of("expert_shared_count", 0),
        "route_scale": of("expert_weights_scale", 1.0),
        "mup_enabled": True,
    }


def glm4_moe(file: GGUF, config: Config) -> Config:
    return ranked(file, config) | {"use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors}


def llama4(file: GGUF, config: Config) -> Config:
    """What no file says is as in both published models."""
    check_sigmoid(file)
    of, layers = file.of_architecture, config["num_hidden_layers"]
    step = of("interleave_moe_layer_step", 1)
    turned = [(i + 1) % 4 != 0 for i in range(layers)]
    return {
        "intermediate_size_mlp": config["intermediate_size"],
        "intermediate_size": of("expert_feed_forward_length"),
        **mixtral(file, config),
        "moe_layers": [*range(step - 1, layers, step)],
        "attention_chunk_size": 8192,
        "no_rope_layers": [*map(int, turned)],
        "layer_types": ["chunked_attention" if one else "full_attention" for one in turned],
        "use_qk_norm": of("expert_count") != _MAVERICK,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    }


def deepseek2(file: GGUF, config: Config) -> Config:
    """DeepSeek V2 and V3, and GLM 4.7 Flash, which is as V3. Old files have no keys of unfolded heads."""
    of = file.of_architecture
    by_softmax = not any(name.endswith("exp_probs_b.bias") for name in file.tensors)  # if the file does not say it
    names = {"model_type": "deepseek_v2"}
    if of("expert_gating_func", _SOFTMAX if by_softmax else None) != _SOFTMAX:
        check_sigmoid(file)
        names = {}
    grouped = "group_limited_greedy" if of("expert_group_count", 1) > 1 else "greedy"
    return _latent(file, config) | _ranks(file) | names | {"topk_method": grouped}


def _latent(file: GGUF, config: Config) -> Config:
    of = file.of_architecture
    turned, stretch = of("rope.dimension_count"), of("rope.scaling.yarn_log_multiplier")
    rope = {name: one for name, one in config["rope_parameters"].items() if name != "partial_rotary_factor"}
    if stretch:
        rope |= {"mscale": 10 * stretch, "mscale_all_dim": 10 * stretch}
    return {
        "num_key_value_heads": config["num_attention_heads"],
        "head_dim": turned,
        "q_lora_rank": of("attention.q_lora_rank"),
        "kv_lora_rank": of("attention.kv_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": of("attention.key_length_mla", of("attention.key_length")) - turned,
        "v_head_dim": of("attention.value_length_mla", of("attention.value_length")),
        "rope_parameters": rope,
        "rope_interleave": True,
        "attention_bias": False,
    }


def mistral4(file: GGUF, config: Config) -> Config:
    """Files that are made of transformers' checkpoints do not say the share by which queries are stretched: it is
    that of the published model, and of its configuration class."""
    own, share = _latent(file, config), file.of_architecture("attention.temperature_scale", 0.1)
    rope = own["rope_parameters"] | {"partial_rotary_factor": 1.0, "llama_4_scaling_beta": share}
    return own | _ranks(file) | {"rope_parameters": rope}


def minicpm3(file: GGUF, config: Config) -> Config:
    """No file says a multiplier: those of the published model are meant. Values are as wide as attention's output."""
    width = file.tensors["blk.0.attn_output.weight"].shape[1] // config["num_attention_heads"]
    return _latent(file, config) | {"v_head_dim": width, "scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}


def hy3(file: GGUF, config: Config) -> Config:
    """Layers with a router have experts."""
    check_sigmoid(file)
    of, own = file.of_architecture, experts(file, config)
    return own | {
        "num_shared_experts": of("expert_shared_feed_forward_length", 0) // own["moe_intermediate_size"],
        "router_scaling_factor": of("expert_weights_scale", 1.0),
        "mlp_layer_types": _fed(file, config),
    }


def cohere2_moe(file: GGUF, config: Config) -> Config:
    of = file.of_architecture
    by_softmax = of("expert_gating_func") == _SOFTMAX
    if not by_softmax:
        check_sigmoid(file)
    return {
        **experts(file, config),
        **command_r(file, config),
        **exaone4(file, config),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "mlp_layer_types": _fed(file, config),
        "intermediate_size": of("expert_feed_forward_length"),
        "prefix_dense_intermediate_size": config["intermediate_size"],
        "prefix_dense_sliding_window_pattern": 1,
        "num_shared_experts": of("expert_shared_count", 0),
        "shared_expert_combination_strategy": "average",
        "expert_selection_fn": "softmax" if by_softmax else "sigmoid",
        "norm_topk_prob": of("expert_weights_norm", False),
    }


def _fed(file: GGUF, config: Config) -> list[str]:
    """Layers without a router are dense."""
    layers = range(config["num_hidden_layers"])
    return ["sparse" if f"blk.{layer}.ffn_gate_inp.weight" in file.tensors else "dense" for layer in layers]
