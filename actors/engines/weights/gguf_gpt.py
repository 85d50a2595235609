"""GGUF architectures with layer norms, older than Llama or of its time, and their configurations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from actors.engines.weights.gguf import GGUF
from actors.engines.weights.gguf_configs import Config
from actors.engines.weights.gguf_parts import ATTENTION, IN_FRONT, STANDARD, UNGATED, Architecture, Order
from protocols.errors import ModelError

_EPSILON = "attention.layer_norm_epsilon"
_NEOX_20B = 44  # layers of the only GPT-NeoX with another activation than Pythia's


def _woven(config: Config) -> Order:
    """Rows of queries, keys and values as GPT-NeoX and Falcon have them: group by group, each its queries first."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["hidden_size"] // heads
    rows, keys = np.arange((heads + 2 * groups) * width), heads * width
    parts = (rows[:keys], rows[keys : keys + groups * width], rows[keys + groups * width :])
    return np.concatenate([part.reshape(groups, -1) for part in parts], 1).reshape(-1)


def _gpt2(file: GGUF, config: Config) -> Config:
    return {
        "layer_norm_epsilon": file.of_architecture(_EPSILON),
        "activation_function": "gelu_new",
        "n_inner": config["intermediate_size"],
        "scale_attn_weights": True,
        "add_cross_attention": False,
    }


def _starcoder(file: GGUF, config: Config) -> Config:
    shared = config["num_key_value_heads"] == 1
    return _gpt2(file, config) | {"activation_function": "gelu_pytorch_tanh", "multi_query": shared}


def _gpt_neox(file: GGUF, config: Config) -> Config:
    return {
        "layer_norm_eps": file.of_architecture(_EPSILON),
        "hidden_act": "gelu_fast" if config["num_hidden_layers"] == _NEOX_20B else "gelu",
        "use_parallel_residual": file.of_architecture("use_parallel_residual", True),
    }


def _falcon(file: GGUF, config: Config) -> Config:
    """Raises ModelError for Falcon 2: the converter does not write its base."""
    groups, two = config["num_key_value_heads"], "blk.0.attn_norm_2.weight" in file.tensors
    if 1 < groups < config["num_attention_heads"] and not two and file.of_architecture("rope.freq_base") is None:
        raise ModelError(
            f"{file.path} is of Falcon 2 and has no falcon.rope.freq_base, without which its rotation is unknown; "
            "choose the model's safetensors"
        )
    return {
        "num_kv_heads": groups,
        "multi_query": groups == 1,
        "new_decoder_architecture": groups > 1,
        "num_ln_in_parallel_attn": 2 if two else 1,
        "parallel_attn": True,
        "alibi": False,
        "bias": "blk.0.attn_qkv.bias" in file.tensors,
        "activation": "gelu",
        "ffn_hidden_size": config["intermediate_size"],
        "layer_norm_epsilon": file.of_architecture(_EPSILON),
    }


def _phi(file: GGUF, config: Config) -> Config:
    return {"layer_norm_eps": file.of_architecture(_EPSILON), "hidden_act": "gelu_new", "qk_layernorm": False}


def _stablelm(file: GGUF, config: Config) -> Config:
    """Halves are parallel where there is no second norm, whatever the metadata say, as llama.cpp has it."""
    return {
        "layer_norm_eps": file.of_architecture(_EPSILON),
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in file.tensors,
        "use_qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "qk_layernorm": False,
    }


def _nemotron(file: GGUF, config: Config) -> Config:
    return {"norm_eps": file.of_architecture(_EPSILON), "hidden_act": "relu2"}


def _olmo(file: GGUF, config: Config) -> Config:
    return {"clip_qkv": file.of_architecture("attention.clamp_kqv")}


def _jais2(file: GGUF, config: Config) -> Config:
    return {"layer_norm_eps": file.of_architecture(_EPSILON), "hidden_act": "relu2", "mlp_bias": True}


_QUERIES_KEYS_VALUES = {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"}
_HALVES = {"ln_1": "attn_norm", "ln_2": "ffn_norm"}
_MATRICES = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
_GPT2_ENDS = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"}
_WIDENED = {"mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}
ARCHITECTURES = {
    "gpt2": Architecture(
        "gpt2",
        _HALVES,
        _gpt2,
        made={f"{ours}.weight": ((f"{theirs}.weight",), lambda one: one.T) for ours, theirs in _MATRICES.items()}
        | {f"{ours}.bias": ((f"{theirs}.bias",), lambda one: one) for ours, theirs in _MATRICES.items()},
        outside=_GPT2_ENDS,
        layers="transformer.h",
    ),
    "starcoder": Architecture(
        "gpt_bigcode",
        _HALVES | _MATRICES,
        _starcoder,
        rows={"attn.c_attn": _woven},
        outside=_GPT2_ENDS,
        layers="transformer.h",
    ),
    "gptneox": Architecture(
        "gpt_neox",
        IN_FRONT | {"attention.query_key_value": "attn_qkv", "attention.dense": "attn_output"} | _WIDENED,
        _gpt_neox,
        rows={"attention.query_key_value": _woven},
        outside={"gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm"},
        layers="gpt_neox.layers",
    ),
    "falcon": Architecture(
        "falcon",
        {"self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output"}
        | {"input_layernorm": "attn_norm"}
        | _WIDENED,
        _falcon,
        rows={"self_attention.query_key_value": _woven},
        outside={"transformer.word_embeddings": "token_embd", "transformer.ln_f": "output_norm"},
        layers="transformer.h",
    ),
    "phi2": Architecture(
        "phi",
        {**_QUERIES_KEYS_VALUES, "self_attn.dense": "attn_output", "input_layernorm": "attn_norm"}
        | {"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
        _phi,
        outside={"model.final_layernorm": "output_norm"},
    ),
    "stablelm": Architecture("stablelm", STANDARD, _stablelm),
    "nemotron": Architecture("nemotron", ATTENTION | UNGATED | IN_FRONT, _nemotron, offset=True),
    "olmo": Architecture("olmo", STANDARD, _olmo, turned=True),
    "jais2": Architecture("jais2", ATTENTION | UNGATED | IN_FRONT, _jais2),
}
_NORMS = {"input_layernorm": "", "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2"}
TWO_NORMS = {  # the same with a norm for each half
    "falcon": replace(ARCHITECTURES["falcon"], names=ARCHITECTURES["falcon"].names | _NORMS)
}
