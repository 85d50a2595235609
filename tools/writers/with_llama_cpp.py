"""GGUF files that llama.cpp's quantiser writes, with the numbers that ggml makes of their blocks.

Packages: llama-cpp-py-sync, which brings libllama, and gguf, torch, transformers.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import base
import gguf
import numpy as np
import torch
from llama_cpp_py_sync import _version
from llama_cpp_py_sync._cffi_bindings import _find_library, ffi, get_lib
from torch import Tensor
from transformers import AutoModelForCausalLM

LIBRARY = get_lib()
GGML = ctypes.CDLL(str(Path(_find_library()).with_name("libggml-base.so.0")))
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
SMALL = {"num_key_value_heads": 1}
PLAIN = {**SMALL, "hidden_size": 32, "intermediate_size": 32}
WIDE = {**SMALL, "hidden_size": 256, "intermediate_size": 32}  # blocks have 256 numbers
TINY = {**WIDE, "num_attention_heads": 1, "head_dim": 4, "intermediate_size": 4, "vocab_size": 8}  # to be refused
ODD = {**SMALL, "hidden_size": 80, "intermediate_size": 64}
EXPERTS = {
    "model_type": "mixtral",
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "intermediate_size": 32,
    "num_key_value_heads": 1,
}


NAME = re.compile(r"((?:blk|model\.layers)\.\d+\.)?(.*)\.weight")


def theirs(name: str) -> str:
    layer, part = NAME.fullmatch(name).groups()
    return f"{(layer or '').replace('model.layers', 'blk')}{NAMES[part]}.weight"


def ours(name: str) -> str:
    if (match := NAME.fullmatch(name)) is None:  # experts have their names already
        return name
    layer, part = match.groups()
    own = next(one for one, two in NAMES.items() if two == part)
    return f"{(layer or '').replace('blk', 'model.layers')}{own}.weight"


def neighbours(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries and keys in the order of rotations of neighbours, as the converter puts them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def turned(config: Any, name: str) -> int:
    """The heads of queries or keys; 0: the matrix is of neither."""
    if "attn_q" in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if "attn_k" in name else 0


def converted(config: Any, weights: Mapping[str, Tensor], path: Path, tokens: int, each: int) -> Path:
    """The model in float32. ``each``: tensors in a part; 0: there is one file. Returns the first."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=each)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if experts := getattr(config, "num_local_experts", 0):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"w{number}" for number in range(tokens)])
    writer.add_token_types([1] * tokens)
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in weights.items():
        values = weight.float().numpy()
        if "experts.gate_up_proj" in name:
            for part, one in zip(("gate", "up"), np.split(values, 2, 1), strict=True):
                writer.add_tensor(f"blk.0.ffn_{part}_exps.weight", np.ascontiguousarray(one))
        elif "experts.down_proj" in name:
            writer.add_tensor("blk.0.ffn_down_exps.weight", values)
        else:
            own = theirs(name)
            heads = turned(config, own)
            writer.add_tensor(own, neighbours(values, heads) if heads else values)
    writer.write_header_to_file(path=path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return next(iter(sorted(path.parent.glob("plain*.gguf"))))


def dequantised(config: Any, files: list[Path]) -> dict[str, Tensor]:
    """By ggml, under Hugging Face's names."""
    found: dict[str, np.ndarray] = {}
    for file in files:
        for tensor in gguf.GGUFReader(file).tensors:
            shape, kind = [int(size) for size in reversed(tensor.shape)], tensor.tensor_type
            values = np.empty(shape, np.float32)
            if kind == gguf.GGMLQuantizationType.F32:
                values[...] = tensor.data.reshape(shape)
            else:
                short = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}
                name = short.get(kind.name, "dequantize_row_" + kind.name.lower().replace("_k", "_K"))
                data = np.ascontiguousarray(tensor.data)
                at, count = values.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(values.size)
                getattr(GGML, name)(data.ctypes.data_as(ctypes.c_void_p), at, count)
            heads = turned(config, tensor.name)
            found[tensor.name] = halves(values, heads) if heads else values
    if "blk.0.ffn_gate_exps.weight" in found:
        both = [found.pop(f"blk.0.ffn_{part}_exps.weight") for part in ("gate", "up")]
        found["model.layers.0.mlp.experts.gate_up_proj"] = np.concatenate(both, 1)
        found["model.layers.0.mlp.experts.down_proj"] = found.pop("blk.0.ffn_down_exps.weight")
    return {ours(name): torch.from_numpy(values) for name, values in found.items()}


def imatrix(files: list[Path]) -> Any:
    """How much each input matters: more and more of them."""
    kept, entries = [], []
    for file in files:
        for tensor in gguf.GGUFReader(file).tensors:
            data = ffi.new("float[]", np.linspace(0.5, 2.0, int(tensor.shape[0])).tolist())
            kept += [data, name := ffi.new("char[]", tensor.name.encode())]
            entries.append({"name": name, "data": data, "size": len(data)})
    return ffi.new("struct llama_model_imatrix_data[]", [*entries, {"name": ffi.NULL}]), kept


def write(
    into: Path,
    kind: str,
    sizes: Mapping[str, Any] = {},
    call: str = "",
    read: bool = True,
    weighed: bool = False,
    types: Mapping[str, str] = {},
    tokens: int = 0,
    each: int = 0,
    **options: Any,
) -> None:
    """``types``: of single tensors; ``weighed``: with an imatrix; ``each``: tensors in a part."""
    config = base.config(**sizes)
    with tempfile.TemporaryDirectory() as place:
        torch.manual_seed(0)
        weights = AutoModelForCausalLM.from_config(config).to(torch.bfloat16).state_dict()
        if config.tie_word_embeddings:
            del weights["lm_head.weight"]
        plain = converted(config, weights, Path(place) / "plain.gguf", tokens or config.vocab_size, each)
        parts = sorted(Path(place).glob("plain*.gguf"))
        params = LIBRARY.llama_model_quantize_default_params()
        params.nthread, params.ftype = 1, getattr(LIBRARY, f"LLAMA_FTYPE_{kind}")
        for name, value in options.items():
            setattr(params, name, getattr(LIBRARY, value) if isinstance(value, str) else value)
        kept: list[Any] = []
        if weighed:
            params.imatrix, more = imatrix(parts)
            kept.append(more)
        if types:
            patterns = [
                {"pattern": ffi.new("char[]", name.encode()), "type": getattr(LIBRARY, f"GGML_TYPE_{one}")}
                for name, one in types.items()
            ]
            kept.append(patterns)
            kept.append(
                overrides := ffi.new("struct llama_model_tensor_override[]", [*patterns, {"pattern": ffi.NULL}])
            )
            params.tt_overrides = overrides
        written = Path(place) / "written"
        written.mkdir()
        name = str(written / ("model" if each else "model.gguf")).encode()
        if LIBRARY.llama_model_quantize(str(plain).encode(), name, ffi.new("llama_model_quantize_params *", params)):
            raise RuntimeError("llama_model_quantize has failed")
        said = {"tool": f"llama.cpp {_version.__llama_cpp_tag__}", "call": call or kind.removeprefix("MOSTLY_")}
        found = dequantised(config, sorted(written.glob("*.gguf"))) if read else {}
        base.keep(written, into, found, said, **sizes)


SIXTEEN = "F16 BF16"
BLOCKS = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL"
K = "Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ4_XS"
REFUSED = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS IQ3_XS IQ3_S IQ3_M TQ1_0 TQ2_0 Q2_0"
CASES: dict[str, Callable[[Path], None]] = {
    "gguf-f32": partial(write, kind="ALL_F32", sizes=PLAIN),
    **{f"gguf-{one.lower()}": partial(write, kind=f"MOSTLY_{one}", sizes=PLAIN) for one in SIXTEEN.split()},
    **{f"gguf-{one.lower()}": partial(write, kind=f"MOSTLY_{one}", sizes=SMALL) for one in BLOCKS.split()},
    **{f"gguf-{one.lower()}": partial(write, kind=f"MOSTLY_{one}", sizes=WIDE) for one in K.split()},
    **{
        f"gguf-{one.lower()}": partial(write, kind=f"MOSTLY_{one}", sizes=TINY, read=False, weighed=True)
        for one in REFUSED.split()
    },
    "gguf-q2_k_s": partial(write, kind="MOSTLY_Q2_K_S", sizes=WIDE, weighed=True, call="Q2_K_S, imatrix"),
    "gguf-q4_k_m-imatrix": partial(write, kind="MOSTLY_Q4_K_M", sizes=WIDE, weighed=True, call="Q4_K_M, imatrix"),
    "gguf-mxfp4_moe": partial(write, kind="MOSTLY_MXFP4_MOE", sizes=EXPERTS, call="MXFP4_MOE of two experts"),
    "gguf-pure": partial(write, kind="MOSTLY_Q4_K_M", sizes=WIDE, pure=True, call="Q4_K_M, --pure"),
    "gguf-odd": partial(write, kind="MOSTLY_Q4_K_M", sizes=ODD, call="Q4_K_M of rows of 80, 64 and 32 inputs"),
    "gguf-types": partial(
        write,
        kind="MOSTLY_Q4_0",
        sizes={**WIDE, "tie_word_embeddings": False},
        types={"attn_v": "Q8_0", "ffn_up": "Q3_K", "attn_q": "IQ4_XS"},
        token_embedding_type="GGML_TYPE_Q2_K",
        output_tensor_type="GGML_TYPE_Q5_K",
        call="Q4_0, --tensor-type of three, --token-embedding-type Q2_K, --output-tensor-type Q5_K, untied head",
    ),
    "gguf-padded": partial(
        write, kind="MOSTLY_Q5_K_M", sizes=WIDE, tokens=60, call="Q5_K_M of 60 tokens in an embedding of 64"
    ),
    "gguf-parts": partial(
        write, kind="MOSTLY_Q4_0", sizes=SMALL, each=4, keep_split=True, call="Q4_0 in parts, --keep-split"
    ),
}

if __name__ == "__main__":
    base.main(CASES)
