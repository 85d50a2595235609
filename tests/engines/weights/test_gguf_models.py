"""GGUF files written here as llama.cpp's converter writes them: architectures and settings of which it has written no
file of ours (test_gguf_families.py), and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from actors.engines.decoder.configuration import spec_of
from actors.engines.weights.dtypes import parameters
from actors.engines.weights.gguf_loading import GGUFFile
from actors.engines.weights.gguf_models import ARCHITECTURES, GGUFCheckpoint
from actors.engines.weights.loading import load_config, load_model, max_context, vocab_size
from protocols.errors import ModelError

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROPE = {"rope_type": "default", "rope_theta": 20_000.0}
Write = Callable[[gguf.GGUFWriter, Any], Any]


def _experts(w: gguf.GGUFWriter, c: Any) -> None:
    w.add_expert_count(c.num_local_experts if hasattr(c, "num_local_experts") else c.num_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(getattr(c, "moe_intermediate_size", None) or c.intermediate_size)


def _qwen35(w: gguf.GGUFWriter, c: Any) -> None:
    w.add_ssm_conv_kernel(c.linear_conv_kernel_dim)
    w.add_ssm_state_size(c.linear_key_head_dim)
    w.add_ssm_group_count(c.linear_num_key_heads)
    w.add_ssm_time_step_rank(c.linear_num_value_heads)
    w.add_ssm_inner_size(c.linear_value_head_dim * c.linear_num_value_heads)
    w.add_full_attention_interval(4)
    w.add_rope_dimension_sections([c.head_dim // 8, 0, 0, 0])


def _qwen35_moe(w: gguf.GGUFWriter, c: Any) -> None:
    _qwen35(w, c)
    _experts(w, c)
    w.add_expert_shared_feed_forward_length(c.shared_expert_intermediate_size)


def _ranked(w: gguf.GGUFWriter, c: Any) -> None:
    w.add_expert_count(c.n_routed_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(c.moe_intermediate_size)
    w.add_expert_shared_count(c.n_shared_experts)
    w.add_leading_dense_block_count(c.first_k_dense_replace)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(c.norm_topk_prob)
    w.add_expert_group_count(c.n_group)
    w.add_expert_group_used_count(c.topk_group)


def _llama3(w: gguf.GGUFWriter, c: Any) -> None:
    rope = c.rope_parameters
    frequencies = 1 / rope["rope_theta"] ** (np.arange(0, c.head_dim, 2) / c.head_dim)
    waves = 2 * np.pi / frequencies
    smooth = ((8192 / waves - 1) / 3).clip(0, 1)
    w.add_tensor("rope_freqs.weight", (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32))


def _command_r(w: gguf.GGUFWriter, c: Any) -> None:
    w.add_layer_norm_eps(c.layer_norm_eps)
    w.add_logit_scale(c.logit_scale)


def _none(w: gguf.GGUFWriter, c: Any) -> None: ...


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
}
RANKED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
CASES: dict[str, tuple[str, dict[str, Any], Write]] = {
    "llama": ("llama", {}, _none),
    "llama3": (
        "llama",
        {"rope_parameters": {**ROPE, "rope_theta": 5e5, **LLAMA3, "original_max_position_embeddings": 8192}},
        _llama3,
    ),
    "untied llama": ("llama", {"tie_word_embeddings": False}, _none),
    "qwen3": ("qwen3", {}, _none),
    "gemma3": (
        "gemma3",
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {**ROPE, "rope_theta": 1e6},
                "sliding_attention": {**ROPE, "rope_theta": 1e4},
            },
        },
        lambda w, c: w.add_sliding_window(c.sliding_window),
    ),
    "glm4moe": (
        "glm4moe",
        {**RANKED, "n_group": 1, "use_qk_norm": True, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}},
        _ranked,
    ),
    "qwen35": ("qwen35", DELTA, _qwen35),
    "qwen35 of equal heads": ("qwen35", {**DELTA, "linear_num_key_heads": 4}, _qwen35),
    "qwen35moe": (
        "qwen35moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            **DELTA,
        },
        _qwen35_moe,
    ),
    "exaone4 without windows": (
        "exaone4",
        {"head_dim": 16, "sliding_window": None, "layer_types": ["full_attention"] * 4},
        _none,
    ),
    "command-r with norms of heads": (
        "command-r",
        {"head_dim": 16, "logit_scale": 0.25, "use_qk_norm": True},
        _command_r,
    ),
}


def written(path: Path, architecture: str, model: Any, more: Write) -> Path:
    """As llama.cpp's convert_hf_to_gguf.py does."""
    config, w = model.config, gguf.GGUFWriter(path, architecture)
    w.add_block_count(config.num_hidden_layers)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    if architecture != "qwen35moe":
        w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    w.add_key_length(width)
    w.add_value_length(width)
    if getattr(config, "rms_norm_eps", None):
        w.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    w.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    w.add_rope_dimension_count(int(width * rope.get("partial_rotary_factor", 1)))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    more(w, config)
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture), 8)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = weight.float().numpy()
        if architecture == "llama" and (part := name.split(".")[-2]) in heads:
            values = values.reshape(heads[part], 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if "linear_attn" in name:
            name, values = _of_delta(config, name, values)
        elif architecture.startswith(("gemma3", "qwen35")) and values.ndim == 1:
            values = values + 1
        name = name.replace("correction_bias", "correction.bias")
        for theirs, part in _split(names, name, values):
            w.add_tensor(theirs, np.ascontiguousarray(part))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _of_delta(config: Any, name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    """With value heads that share keys apart."""
    part, groups = name.split(".")[4], config.linear_num_key_heads
    if part == "norm":
        return name, values
    if part == "A_log":
        values = -np.exp(values)
    inner = config.linear_num_value_heads * config.linear_value_head_dim
    values = values.squeeze(1) if part == "conv1d" else values.T if part == "out_proj" else values
    fixed = len(values) - inner if part in ("conv1d", "in_proj_qkv") else 0
    heads = values[fixed:].reshape(groups, config.linear_num_value_heads // groups, -1).swapaxes(0, 1)
    values = np.concatenate([values[:fixed], heads.reshape(values[fixed:].shape)])
    return name.replace("dt_bias", "dt_proj.bias"), values.T if part == "out_proj" else values


def _split(names: Any, name: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    layer = ".".join(name.split(".")[:3]).replace("model.layers", "blk")
    if ".experts." not in name:
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found, name
        return [(found, values)]
    if "down_proj" in name:
        return [(f"{layer}.ffn_down_exps.weight", values)]
    half = values.shape[1] // 2
    return [(f"{layer}.ffn_gate_exps.weight", values[:, :half]), (f"{layer}.ffn_up_exps.weight", values[:, half:])]


def tiny(architecture: str, changes: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    sizes = {**SIZES, "rope_parameters": dict(ROPE), "tie_word_embeddings": True, **changes}
    config = AutoConfig.for_model(sizes.pop("model_type", ARCHITECTURES[architecture].model_type), **sizes)
    config.allow_global_per_layer_attribute_access = True  # Gemma 4's head_dim is that of layers with windows
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    for name, buffer in model.named_buffers():
        if name.endswith(("layer_scalar", "bias")):
            buffer.uniform_(0.5, 1.0)
    return model


@pytest.mark.parametrize("case", CASES)
def test_the_metadata_alone_describe_what_transformers_makes_of_them(case: str, tmp_path: Path) -> None:
    architecture, changes, more = CASES[case]
    path = str(written(tmp_path / "tiny.gguf", architecture, tiny(architecture, changes), more))
    ours, theirs = GGUFFile(path).known_config(), load_config(path)
    assert spec_of(ours) == spec_of(theirs) is not None
    models: list[Any] = [SimpleNamespace(config=config) for config in (ours, theirs)]
    assert max_context(models[0]) == max_context(models[1])
    assert vocab_size(models[0]) == vocab_size(models[1])
    assert parameters(ours) == parameters(theirs) and ours.dtype == theirs.dtype


@pytest.mark.parametrize("case", CASES)
def test_a_converted_model_computes_what_the_original_does(case: str, tmp_path: Path) -> None:
    architecture, changes, more = CASES[case]
    model = tiny(architecture, changes)
    path = str(written(tmp_path / "tiny.gguf", architecture, model, more))
    ids = torch.tensor([list(range(3, 43))])
    with torch.no_grad():
        expected = model(ids).logits
        found = load_model(path, torch.device("cpu"), torch.float32)(ids).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attention.sliding_window", 4096),
        ("attention.value_length", 8),
        ("logit_scale", 0.25),
        ("expert_weights_scale", 2.5),
        ("swiglu_clamp_exp", [7.0, 7.0]),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.type", "dynamic"),
        ("rope.scaling.attn_factor", 1.25),
        ("rope.scaling.yarn_beta_fast", 16.0),
    ],
)
def test_what_an_architecture_does_not_compute_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint(written(tmp_path / "tiny.gguf", "llama", tiny("llama", {}), _none))
    checkpoint.file.metadata[f"llama.{key}"] = np.array(value) if isinstance(value, list) else value
    told = rf"tiny\.gguf has llama\.{re.escape(key)} = .*choose a file without it"
    with (
        patch("actors.engines.weights.gguf_models.GGUF", lambda path: checkpoint.file),
        pytest.raises(ModelError, match=told),
    ):
        GGUFCheckpoint(checkpoint.file.path)


@pytest.mark.parametrize(("stretch", "read"), [(1 + 0.1 * math.log(8), True), (1.0, False), (1.25, False)])
def test_yarn_stretches_attention_by_its_usual_factor_alone(stretch: float, read: bool, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint(written(tmp_path / "tiny.gguf", "llama", tiny("llama", {}), _none))
    said = {"type": "yarn", "factor": 8.0, "yarn_attn_factor": float(np.float32(stretch))}
    checkpoint.file.metadata |= {f"llama.rope.scaling.{key}": value for key, value in said.items()}
    refused = pytest.raises(
        ModelError, match=r"has llama\.rope\.scaling\.yarn_attn_factor = .*choose a file without it"
    )
    with (
        patch("actors.engines.weights.gguf_models.GGUF", lambda path: checkpoint.file),
        nullcontext() if read else refused,
    ):
        GGUFCheckpoint(checkpoint.file.path)


def test_matrices_keep_their_blocks_and_rows_their_order(tmp_path: Path) -> None:
    model = tiny("llama", {})
    checkpoint = GGUFCheckpoint(written(tmp_path / "tiny.gguf", "llama", model, _none))
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            found = checkpoint.own()[name]
            assert found.make is None
            np.testing.assert_array_equal(found.values(), weight.numpy())


def test_a_file_without_a_tensor_says_so(tmp_path: Path) -> None:
    model = tiny("llama", {})
    del model.model.layers[2].mlp.up_proj
    path = str(written(tmp_path / "holed.gguf", "llama", model, _none))
    with pytest.raises(ModelError, match=r"1 weights are missing .*model\.layers\.2\.mlp\.up_proj\.weight first"):
        load_model(path, torch.device("cpu"), torch.float32)
    with pytest.raises(ModelError, match=r"holed\.gguf has no tensor blk\.2\.ffn_up\.weight"):
        GGUFFile(path).source(torch.float32).take("model.layers.2.mlp.up_proj.weight")


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_a_download_that_took_its_room_and_did_not_end_is_refused(share: float, tmp_path: Path) -> None:
    """Its length is right, and zeros are where it stopped: the answers would be noise."""
    path = written(tmp_path / "tiny.gguf", "llama", tiny("llama", {}), _none)
    GGUFCheckpoint(path)
    whole = path.read_bytes()
    kept = int(share * len(whole))
    path.write_bytes(whole[:kept] + bytes(len(whole) - kept))
    with pytest.raises(
        ModelError, match=r"norm\.weight in .*tiny\.gguf holds nothing but zeros, .*; download it again"
    ):
        GGUFCheckpoint(path)


def test_norms_that_are_zeros_in_the_model_and_ones_in_the_file_are_read(tmp_path: Path) -> None:
    model = tiny(*CASES["gemma3"][:2])
    model.model.layers[0].input_layernorm.weight.data.zero_()
    GGUFCheckpoint(written(tmp_path / "tiny.gguf", *CASES["gemma3"][:1], model, CASES["gemma3"][2]))


def test_a_file_that_does_not_say_the_epsilon_of_its_norms_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "tiny.gguf", "llama", tiny("llama", {}), _none)
    path.write_bytes(path.read_bytes().replace(b"norm_rms_epsilon", b"norm_rms_epsilox"))
    with pytest.raises(ModelError, match=r"has no llama\.attention\.layer_norm_rms_epsilon; download it again"):
        GGUFCheckpoint(path)


@pytest.mark.parametrize("part", ["attn_q", "attn_k", "attn_v"])
def test_a_bias_that_one_layer_lacks_is_missed(part: str, tmp_path: Path) -> None:
    """The layer would be computed without it."""
    model = tiny("qwen2", {})
    path = written(tmp_path / "whole.gguf", "qwen2", model, _none)
    GGUFCheckpoint(path)
    whole, holed = path.read_bytes(), tmp_path / "holed.gguf"
    name = f"blk.1.{part}.bias".encode()
    holed.write_bytes(whole.replace(name, name.replace(b"blk.1", b"v.k.1")))
    with pytest.raises(ModelError, match=rf"holed.gguf has no tensor blk.1.{part}.bias, which its other layers have"):
        GGUFCheckpoint(holed)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias"),
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.gate.weight", "model.layers.1.mlp.gate.weight"),
    ],
)
def test_a_weight_is_called_as_in_the_file(ours: str, theirs: str, tmp_path: Path) -> None:
    path = written(tmp_path / "tiny.gguf", "llama", tiny("llama", {}), _none)
    assert GGUFCheckpoint(path).name_in_file(ours) == theirs


def test_a_tensor_that_its_architecture_has_no_name_for_is_refused(tmp_path: Path) -> None:
    def with_gates(w: gguf.GGUFWriter, c: Any) -> None:
        for layer in range(2):
            w.add_tensor(f"blk.{layer}.attn_gate.weight", np.zeros((64, 64), np.float32))
        w.add_tensor("v.blk.0.attn_q.weight", np.zeros((64, 64), np.float32))  # eyes, which a text model does not need

    with pytest.raises(
        ModelError, match=r"2 tensors that .* in the architecture llama, blk\.0\.attn_gate\.weight first"
    ):
        GGUFCheckpoint(written(tmp_path / "tiny.gguf", "llama", tiny("llama", {}), with_gates))


def test_another_architecture_is_named(tmp_path: Path) -> None:
    w = gguf.GGUFWriter(tmp_path / "other.gguf", "rwkv6")
    w.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    with pytest.raises(ModelError, match="has the architecture rwkv6; duoactor reads GGUF files of llama, qwen2"):
        GGUFFile(str(tmp_path / "other.gguf")).known_config()
