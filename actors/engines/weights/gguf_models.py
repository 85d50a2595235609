"""GGUF architectures in the words of Hugging Face: the configuration and the names of the weights.

A file's metadata become what ``config.json`` says, and its tensors have the names and the order of rows that the
model's modules expect. So everything behind a checkpoint works with a GGUF file as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.engines.weights.gguf import GGUF, Stored
from protocols.errors import ModelError

Config = dict[str, Any]
Floats = NDArray[np.float32]

OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
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
LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
# Of the one mixture of frequencies that Llama 3 checkpoints have: wave lengths below 1/4 of its context stay.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one ``general.architecture`` is called and how it differs."""

    model_type: str
    class_name: str
    names: dict[str, str]  # of a layer's parts: ours (Hugging Face's) to the file's
    config: Callable[[GGUF, Config], Config] = lambda file, config: {}  # what is added to the usual configuration
    turned: bool = False  # queries and keys have the partners of a rotation side by side
    offset: bool = False  # norms hold w + 1
    made: dict[str, tuple[tuple[str, ...], Callable[..., Floats]]] = field(default_factory=dict)  # out of several


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
_FUSED_MLP = {"mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_ROUTER = {"mlp.gate": "ffn_gate_inp"}
_SHARED = {f"mlp.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}


def _of_experts(part: str = "mlp") -> dict[str, tuple[tuple[str, ...], Callable[..., Floats]]]:
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
        made=_of_experts()
        | {"mlp.shared_expert_gate.weight": (("ffn_gate_inp_shexp.weight",), lambda gate: gate.reshape(1, -1))},
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
    "gpt-oss": Architecture(
        "gpt_oss",
        "GptOssForCausalLM",
        ATTENTION
        | {
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "post_attention_norm",
            "mlp.router": "ffn_gate_inp",
        },
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


class GGUFCheckpoint:
    """A GGUF file as a checkpoint: ``config`` and weights by the names of Hugging Face's modules."""

    def __init__(self, path: str | Path) -> None:
        """Raises ModelError for a file that cannot be read or whose architecture is not known."""
        self.file = GGUF(path)
        known = ARCHITECTURES.get(self.file.architecture)
        if known is None:
            raise ModelError(
                f"{path} has the architecture {self.file.architecture or 'unknown'}; "
                f"duoactor reads GGUF files of {', '.join(ARCHITECTURES)}"
            )
        self._known = MIXTRAL if known is ARCHITECTURES["llama"] and self._one("expert_count", 0) else known
        self.config = self._config()

    def names(self) -> Iterator[str]:
        """All weights of the model."""
        theirs = self.file.tensors
        for ours, name in OUTSIDE.items():
            yield from (f"{ours}.{kind}" for kind in ("weight", "bias") if f"{name}.{kind}" in theirs)
        for layer in range(self.config["num_hidden_layers"]):
            for ours, name in self._known.names.items():
                for kind in ("weight", "bias"):
                    if f"blk.{layer}.{name}.{kind}" in theirs:
                        yield f"model.layers.{layer}.{ours}.{kind}"
            yield from (f"model.layers.{layer}.{ours}" for ours in self._known.made)

    def matrix(self, name: str) -> tuple[Stored, NDArray[np.int64] | None] | None:
        """A weight in the blocks of the file and the order of its rows; None: it has to be computed."""
        found = self._found(name)
        if found is None or (self._known.offset and len(found.shape) == 1):
            return None
        return found, self._order(name, found)

    def expert_matrices(self, name: str) -> list[list[Stored]]:
        """Of each expert the matrices that one of ours is made of, one below the other; empty: there are none."""
        match = LAYER.fullmatch(name)
        made = self._known.made.get(match[2]) if match else None
        if match is None or made is None:
            return []
        whole = [self._stored(f"blk.{match[1]}.{part}") for part in made[0]]
        if any(len(stored.shape) != 3 for stored in whole):
            return []
        return [[stored.parted(expert) for stored in whole] for expert in range(whole[0].shape[0])]

    @property
    def kinds(self) -> str:
        """The kinds of blocks of its matrices, that with the most bytes first."""
        sizes: dict[str, int] = {}
        for one in self.file.tensors.values():
            if len(one.shape) > 1:
                sizes[one.kind.name] = sizes.get(one.kind.name, 0) + one.data.nbytes
        return ", ".join(sorted(sizes, key=lambda kind: -sizes[kind]))

    def values(self, name: str) -> Floats:
        """A weight's numbers. Raises ModelError if the file lacks it."""
        match = LAYER.fullmatch(name)
        made = self._known.made.get(match[2]) if match else None
        if match and made is not None:
            parts = [self._stored(f"blk.{match[1]}.{part}").values() for part in made[0]]
            return made[1](*parts)
        found = self._found(name)
        if found is None:
            raise ModelError(f"{self.file.path} has no tensor for {name}; download it again")
        values, order = found.values(), self._order(name, found)
        if order is not None:
            values = values[order]
        return values - np.float32(1) if self._known.offset and values.ndim == 1 else values

    def _stored(self, name: str) -> Stored:
        if name not in self.file.tensors:
            raise ModelError(f"{self.file.path} has no tensor {name}; download it again")
        return self.file.tensors[name]

    def _found(self, name: str) -> Stored | None:
        part, _, kind = name.rpartition(".")
        match = LAYER.fullmatch(part)
        if match is None:
            return self.file.tensors.get(f"{OUTSIDE.get(part, part)}.{kind}")
        theirs = self._known.names.get(match[2])
        return None if theirs is None else self.file.tensors.get(f"blk.{match[1]}.{theirs}.{kind}")

    def _order(self, name: str, found: Stored) -> NDArray[np.int64] | None:
        """The rows in the order of a rotation of halves, where the file has neighbours."""
        part = name.rsplit(".", 2)[-2] if self._known.turned else ""
        if part not in ("q_proj", "k_proj"):
            return None
        heads = self.config["num_attention_heads" if part == "q_proj" else "num_key_value_heads"]
        rows = np.arange(found.shape[0]).reshape(heads, -1, 2)
        return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(-1)

    def _config(self) -> Config:
        file, known = self.file, self._known
        of, ids = file.of_architecture, file.metadata
        heads, hidden = self._one("attention.head_count"), self._one("embedding_length")
        width = of("attention.key_length", hidden // heads)
        config: Config = {
            "model_type": known.model_type,
            "architectures": [known.class_name],
            "hidden_size": hidden,
            "num_hidden_layers": self._one("block_count") - of("nextn_predict_layers", 0),
            "intermediate_size": self._one("feed_forward_length"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._one("attention.head_count_kv", heads),
            "head_dim": width,
            "rms_norm_eps": of("attention.layer_norm_rms_epsilon", 1e-6),
            "max_position_embeddings": self._one("context_length"),
            "vocab_size": self._stored("token_embd.weight").shape[0],
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "bos_token_id": ids.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": ids.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": ids.get("tokenizer.ggml.padding_token_id"),
            "dtype": self._dtype(),
            "rope_parameters": self._rope(width),
        }
        if "blk.0.attn_q.bias" in file.tensors:
            config["attention_bias"] = True
        return config | known.config(file, config)

    def _dtype(self) -> str:
        """In what the weights that are computed are kept: the bits that 16-bit files have, else bfloat16."""
        kinds = {stored.kind.name for stored in self.file.tensors.values() if len(stored.shape) > 1}
        return {"F32": "float32", "F16": "float16"}.get(min(kinds), "bfloat16") if len(kinds) == 1 else "bfloat16"

    def _one(self, key: str, default: int | None = None) -> int:
        """A number that all layers share."""
        found = self.file.of_architecture(key, default)
        values = set(np.atleast_1d(found).tolist()) if found is not None else set()
        if len(values) != 1:
            what = "is missing" if not values else "differs between layers"
            raise ModelError(
                f"{self.file.path}: {self.file.architecture}.{key} {what}, so duoactor cannot run the file"
            )
        return int(values.pop())

    def _rope(self, width: int) -> Config:
        of = self.file.of_architecture
        rope: Config = {"rope_type": "default", "rope_theta": of("rope.freq_base", 10_000.0)}
        turned = of("rope.dimension_count", width)
        if turned != width:
            rope["partial_rotary_factor"] = turned / width
        kind, factor = of("rope.scaling.type", "none"), of("rope.scaling.factor", 1.0)
        if kind == "yarn":
            before = of("rope.scaling.original_context_length", self._one("context_length"))
            rope |= {"rope_type": kind, "factor": factor, "original_max_position_embeddings": before}
        elif kind == "linear" and factor != 1:
            rope |= {"rope_type": kind, "factor": factor}
        if "rope_freqs.weight" in self.file.tensors:
            rope |= self._llama3(rope["rope_theta"], width)
        return rope

    def _llama3(self, base: float, width: int) -> Config:
        """By what each frequency is divided is a tensor in the file and a formula in Hugging Face's."""
        divisors = self._stored("rope_freqs.weight").values()
        factor, before = float(divisors.max()), LLAMA3["original_max_position_embeddings"]
        waves = 2 * np.pi * base ** (np.arange(0, width, 2) / width)
        smooth = (before / waves - LLAMA3["low_freq_factor"]) / (LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"])
        smooth = smooth.clip(0, 1)
        expected = 1 / ((1 - smooth) / factor + smooth)
        if len(divisors) != len(expected) or not np.allclose(divisors, expected, rtol=1e-3):
            raise ModelError(f"{self.file.path} scales its rotation by factors of its own (rope_freqs), unlike Llama 3")
        return {"rope_type": "llama3", "factor": factor, **LLAMA3}
