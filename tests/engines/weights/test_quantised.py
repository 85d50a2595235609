"""What a quantised checkpoint's config and files may say; the layouts themselves: test_writers.py."""

from __future__ import annotations

import json
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from actors.engines.heads.build import tensors
from actors.engines.weights.draft_vocabulary import draft_vocabulary
from actors.engines.weights.faults import check_checkpoint, quantisation_of
from actors.engines.weights.loading import describe, load_config, load_for_engine, load_model, load_tokenizer
from actors.engines.weights.matrices import Apart, Dequantised
from actors.engines.weights.quantised import dequantised, read_weights
from actors.engines.weights.quantisers import SCHEMES, scheme_of
from actors.engines.weights.stored import StoredModel
from actors.engines.weights.tensor_files import TensorFiles, weight_files
from protocols.errors import ModelError

WRITERS = Path(__file__).parents[2] / "data" / "writers"

SIZES = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
Packed = tuple[dict[str, Tensor], Tensor]  # tensors by the ends of their names; the weight that they stand for


def words(codes: Tensor, bits: int) -> Tensor:
    """int32 words along the last dimension, the lowest bits first."""
    split = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, 32 // bits)
    whole = (split << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).to(torch.int32)


def groups(weight: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of 4 bits, scales and zeros of groups of inputs."""
    split = weight.reshape(len(weight), -1, size)
    least, most = split.amin(2).clamp(max=0), split.amax(2).clamp(min=0)
    scales = ((most - least) / 15).half().float()
    zeros = (-least / scales).round().clamp(1, 15)
    codes = (split / scales[..., None] + zeros[..., None]).round().clamp(0, 15)
    return codes.reshape(weight.shape), scales, zeros


def meant(codes: Tensor, scales: Tensor, zeros: Tensor, size: int) -> Tensor:
    return (codes - zeros.repeat_interleave(size, 1)) * scales.repeat_interleave(size, 1)


def gptq(weight: Tensor) -> Packed:
    codes, scales, zeros = groups(weight, 32)
    parts = {
        "qweight": words(codes, 4).t().contiguous(),
        "qzeros": words(zeros.t() - 1, 4),
        "scales": scales.t().half().contiguous(),
        "g_idx": (torch.arange(weight.shape[1]) // 32).int(),
    }
    return parts, meant(codes, scales, zeros, 32)


def awq(weight: Tensor) -> Packed:
    codes, scales, zeros = groups(weight, 32)

    def columns(numbers: Tensor) -> Tensor:
        return words(numbers.reshape(len(numbers), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4)

    parts = {
        "qweight": columns(codes.t()),
        "qzeros": columns(zeros.t()),
        "scales": scales.t().half().contiguous(),
    }
    return parts, meant(codes, scales, zeros, 32)


def fp8_rows(weight: Tensor) -> Packed:
    scales = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scales}, codes.float() * scales


def fp8_blocks(weight: Tensor) -> Packed:
    rows, inputs = -(-weight.shape[0] // 128), -(-weight.shape[1] // 128)
    scales = torch.rand(rows, inputs) / 100 + 0.01
    whole = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: weight.shape[0], : weight.shape[1]]
    codes = (weight / whole).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}, codes.float() * whole


def compressed(bits: int, form: str, **more: Any) -> dict[str, Any]:
    kind = "int" if form in ("pack-quantized", "int-quantized") else "float"
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, **more}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
GPTQ, CT = {"quant_method": "gptq", "bits": 4, "group_size": 32}, compressed(4, "pack-quantized", group_size=32)
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
FP8 = compressed(8, "float-quantized")
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "GPTQ": (gptq, GPTQ),
    "AWQ": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "FP8": (fp8_rows, compressed(8, "float-quantized", strategy="channel")),
    "FP8 by blocks": (fp8_blocks, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
}


def written(directory: Path, pack: Any, quantisation: dict[str, Any]) -> LlamaForCausalLM:
    """Writes the checkpoint; the model with the weights that it stands for."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    tensors = {}
    for name, weight in model.state_dict().items():
        if name.endswith("proj.weight"):
            parts, stands_for = pack(weight)
            weight.copy_(stands_for)
            tensors |= {f"{name.removesuffix('.weight')}.{end}": part.contiguous() for end, part in parts.items()}
        else:
            tensors[name] = weight
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "quantization_config": quantisation}
    (directory / "config.json").write_text(json.dumps(config))
    return model


CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["ct-fp8", "fp8-block", "ct-nvfp4", "bnb-nf4"])
def test_numbers_of_a_layer_are_made_when_they_are_asked_for(name: str) -> None:
    """All at once were a model of 70B in 280 GB beside the GPU for which they were meant."""
    place = WRITERS / name / "model"
    scheme = quantisation_of(place)
    assert scheme is not None
    weights = dict(read_weights(TensorFiles(weight_files(place)), scheme))
    layers = [weight for name, weight in weights.items() if name.endswith("proj.weight")]
    assert layers
    for weight in layers:
        assert not isinstance(weight, Tensor) and weight.shape == weight.values().shape


def test_a_draft_with_a_head_for_a_part_of_its_vocabulary_keeps_its_map(tmp_path: Path) -> None:
    """Its columns would be taken for the first tokens."""
    whole, ids = written(tmp_path, *CASES["FP8"]), torch.arange(1, 96, 2)
    weights = load_file(tmp_path / "model.safetensors")
    part = {"lm_head.weight": whole.lm_head.weight.detach()[ids], "d2t": ids - torch.arange(len(ids))}
    save_file({**weights, **part}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**said, "draft_vocab_size": len(ids)}))
    for dtype in (torch.float32, torch.bfloat16):
        model: Any = load_for_engine(str(tmp_path), CPU, dtype)
        covered = draft_vocabulary(model)
        assert covered is not None and covered.ids.tolist() == ids.tolist()
        assert torch.equal(model.lm_head.weight, part["lm_head.weight"].to(dtype))


def test_weights_are_read_of_the_file_that_the_configuration_names(tmp_path: Path) -> None:
    """transformers reads it, and the quantised ones were those of model.safetensors."""
    written(tmp_path, *CASES["FP8"])
    own = load_file(tmp_path / "model.safetensors")
    save_file(own, tmp_path / "own.safetensors", metadata={"format": "pt"})
    own["model.norm.weight"] = own["model.norm.weight"] + 1
    save_file(own, tmp_path / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**said, "transformers_weights": "own.safetensors"}))
    loaded: Any = load_model(str(tmp_path), CPU, torch.float32)
    assert torch.equal(loaded.model.norm.weight, own["model.norm.weight"] - 1)


def test_files_beside_the_model_are_not_read(tmp_path: Path) -> None:
    """As the publisher's own layout is, in consolidated.safetensors."""
    weight = torch.randn(32, 32)
    written(tmp_path / "model", *CASES["FP8"])
    save_file({"layers.0.weight": weight}, tmp_path / "model" / "consolidated.safetensors")
    model = load_for_engine(str(tmp_path / "model"), torch.device("cpu"), torch.float32)
    size = model.source.size if isinstance(model, StoredModel) else sum(p.numel() for p in model.parameters())
    assert size == sum(p.numel() for p in LlamaForCausalLM(LlamaConfig(**SIZES)).parameters())


def test_as_many_blocks_as_rows_are_no_scales_of_rows() -> None:
    weight, scales = torch.randn(256, 1024).to(torch.float8_e4m3fn), torch.rand(16, 16)  # blocks of 16 x 64
    whole = scales.repeat_interleave(16, 0).repeat_interleave(64, 1)
    config = {"quant_method": "fp8", "weight_block_size": [16, 64]}
    read = dict(dequantised({"layer.weight": weight, "layer.weight_scale_inv": scales}, scheme_of("m", config)))
    assert torch.equal(read["layer.weight"], weight.float() * whole)


def test_a_model_is_shown_with_its_publishers_format(tmp_path: Path) -> None:
    written(tmp_path / "model", gptq, GPTQ)
    cpu = torch.device("cpu")
    model = load_model(str(tmp_path / "model"), cpu, torch.float32)
    info = describe(
        str(tmp_path / "model"),
        model,
        load_tokenizer(str(Path(__file__).parents[3] / "duoactor/pair/target")),
        cpu,
        "float32",
    )
    assert info.dtype == "gptq, computed in float32"


def with_group(**weights: Any) -> dict[str, Any]:
    """compressed-tensors with a group of these weights."""
    return {**CT, "config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}


OF_TRANSFORMERS = AUTO_QUANTIZATION_CONFIG_MAPPING.keys() - {"bitsandbytes_4bit", "bitsandbytes_8bit"}  # it asks itself
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**CT, "format": "marlin-24"}, "format 'marlin-24' in its quantization_config of compressed-tensors"),
    ({**CT, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format 'sparse-24-bitmask' of compr"),
    ({**GPTQ, "checkpoint_format": "marlin"}, "one GPU kernel"),
    ({**GPTQ, "bits": 5}, "bits 5 in its quantization_config of gptq.* GPTQ of 2, 3, 4 and 8 bits"),
    ({**GPTQ, "checkpoint_format": "gptq_p"}, "checkpoint_format 'gptq_p'"),
    ({**GPTQ, "rotation": "hadamard"}, "the key rotation"),
    ({**GPTQ, "pack_dtype": "int16"}, "pack_dtype 'int16'"),
    ({**GPTQ, "dynamic": {"lm_head": {"bits": 5}}}, "dynamic.lm_head.bits 5"),
    ({**GPTQ, "dynamic": {"(": {"bits": 8}}}, "dynamic .*which is no pattern"),
    ({"quant_method": "gptq", "bits": 4}, "no group_size"),
    ({**AWQ, "version": "gemv"}, "version 'gemv' .*version gemm"),
    ({"quant_method": "awq", "bits": 8, "group_size": 32}, "bits 8"),
    ({**CT, "transform_config": {"config_groups": {"R4": {"apply": [{"location": "input"}]}}}}, "transform_config.R4"),
    ({**CT, "something": 1}, "the key something"),
    ({**CT, "sparsity_config": [1]}, r"sparsity_config \[1\]"),
    ({**CT, "config_groups": {"g": 4}}, "config_groups.g.4 of compressed-tensors"),
    ({**GPTQ, "dynamic": {"lm_head": 8}}, "dynamic.lm_head.8 of gptq"),
    ({**CT, "format": "w5-packed"}, "format 'w5-packed'"),
    ({**CT, "ignore": ["re:["]}, "which is no pattern"),
    (with_group(num_bits=4, type="int", levels=3), "the key config_groups.g.weights.levels"),
    (with_group(num_bits=9, type="int"), "config_groups.g.weights.num_bits 9"),
    (with_group(num_bits=4, type="float"), "pack-quantized floats of 4 bits"),
    ({"quant_method": "fp8", "weight_scale_semantics": "inverse"}, "weight_scale_semantics"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
    ({**MODELOPT, "quant_algo": "W4A16_AWQ"}, "quant_algo 'W4A16_AWQ' .*modelopt's FP8"),
    ({**MODELOPT, "quant_algo": "mxfp4"}, "quant_algo 'mxfp4'"),
    ({**BNB, "bnb_4bit_quant_type": "af4"}, "bnb_4bit_quant_type 'af4'"),
    ({"quant_method": "mxfp4", "group": 16}, "the key group"),
    (
        {"quant_method": "intel/auto-round", "bits": 4, "group_size": 32},
        "no packing_format in its quantization_config of auto-round, without which .*; choose a checkpoint with",
    ),
    ({**AWQ, "modules_to_not_convert": ["lm_head", 7]}, r"modules_to_not_convert\[1\] 7 in its"),
    ({**CT, "ignore": ["lm_head", ["x"]]}, r"ignore\[1\] \['x'\] in its"),
    ({**CT, "config_groups": {"g": {"targets": ["Linear", 3]}}}, r"config_groups\.g\.targets\[1\] 3 in its"),
    ({"quant_method": "fp8", "weight_block_size": [128, "x"]}, r"weight_block_size\[1\] 'x' in its"),
    ({"quant_method": "torchao"}, "has torchao, which"),
    ({"quant_method": "gguf"}, "GPTQModel in the layout of GGUF"),
    ({"quant_method": "made-up"}, "quant_method 'made-up'"),
    ({"bits": 4}, "an unnamed tool"),
    *(
        ({"quant_method": name}, "which duoactor does not read; choose")
        for name in sorted(OF_TRANSFORMERS - SCHEMES.keys())
    ),
]


@pytest.mark.parametrize(("quantisation", "sentence"), REFUSED)
def test_what_a_config_says_and_is_not_known_is_refused_by_its_key(
    quantisation: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    written(tmp_path / "model", gptq, quantisation)
    with pytest.raises(ModelError, match=sentence):
        load_config(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("name", "kind", "tool"),
    [
        ("q_weight", torch.int32, "ExLlamaV2"),
        ("trellis", torch.int16, "ExLlamaV3"),
        ("W_q", torch.uint8, "HQQ or SINQ"),
        ("weight._data", torch.int8, "quanto"),
        ("weight._data._data", torch.uint8, "quanto"),
        ("weight_qdata", torch.int8, "torchao"),
        ("weight", torch.uint8, ""),
        ("weight", torch.float8_e4m3fn, ""),
    ],
)
def test_codes_of_exl2_exl3_hqq_quanto_or_torchao_without_a_config_are_refused(
    name: str, kind: torch.dtype, tool: str, tmp_path: Path
) -> None:
    """Where no other file of a tool says what they are, names of its own do, or none does."""
    written(tmp_path / "model", gptq, GPTQ)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    whole = f"model.layers.0.self_attn.q_proj.{name}"
    save_file({whole: torch.zeros(4, 4, dtype=torch.float32).to(kind)}, tmp_path / "model" / "model.safetensors")
    sentence = f"{whole} in .* and no quantization_config says what that stands for"
    if tool:
        sentence = f"{whole} in [IU]\\d+, a name that only {tool} gives, which duoactor does not read; choose"
    with pytest.raises(ModelError, match=sentence):
        load_config(str(tmp_path / "model"))


@pytest.mark.parametrize(("file", "tool"), [("quanto_qmap.json", "quanto"), ("qmodel.pt", "HQQ or SINQ")])
def test_a_file_that_one_tool_alone_writes_names_it(file: str, tool: str, tmp_path: Path) -> None:
    """Both leave config.json as it was."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).touch()
    with pytest.raises(ModelError, match=f"{file} has {tool}, which duoactor does not read; choose"):
        check_checkpoint(str(tmp_path))


def test_the_values_of_several_layers_are_named_each_once_and_nothing_else_of_the_config() -> None:
    layers = {name: {"quant_algo": kind} for name, kind in (("a", "FP8"), ("b", "TERNARY"), ("c", "TERNARY"))}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    with pytest.raises(
        ModelError, match=r"m has quantized_layers\[...\]\.quant_algo 'FP8, TERNARY' in its quantization_"
    ):
        scheme_of("m", config)


@pytest.mark.parametrize("order", [1, -1])
def test_a_pattern_goes_before_a_class_whatever_the_order_of_groups(order: int) -> None:
    groups = [
        {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}},
        {"targets": ["re:.*down_proj$"], "weights": {"num_bits": 8, "group_size": 32}},
    ]
    scheme = scheme_of("m", {**CT, "config_groups": {str(place): group for place, group in enumerate(groups[::order])}})
    forms = [scheme.form(f"model.layers.0.mlp.{name}_proj") for name in ("down", "up")]
    assert [form and form.bits for form in forms] == [8, 4]


def test_a_layer_that_no_group_names_is_not_read_as_the_first_group_says() -> None:
    parts = {"weight_packed": torch.ones(64, 8).int(), "weight_scale": torch.ones(64, 2)}
    tensors = {f"a.q_proj.{end}": part for end, part in parts.items()}
    config = {
        **CT,
        "config_groups": {"g": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 4, "group_size": 32}}},
    }
    with pytest.raises(ModelError, match=r"a\.q_proj has quantised tensors .* names none of compressed-tensors"):
        list(read_weights(tensors, scheme_of("m", config)))


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_numbers_that_fill_no_word_are_read_by_the_width_of_their_rows(bits: int) -> None:
    """compressed-tensors before 0.18 left the rest of each word empty; no format says so."""
    codes = torch.randint(0, 1 << bits, (4, 96))
    each, rows = 32 // bits, []
    for row in codes.tolist():
        parts = [row[first : first + each] for first in range(0, 96, each)]
        rows.append([sum(code << bits * place for place, code in enumerate(part)) for part in parts])
    unsigned = torch.tensor(rows)
    tensors = {
        "a.q_proj.weight_packed": torch.where(unsigned >= 1 << 31, unsigned - (1 << 32), unsigned).int(),
        "a.q_proj.weight_scale": torch.ones(4, 3),
        "a.q_proj.weight_shape": torch.tensor([4, 96]),
    }
    scheme = scheme_of("m", compressed(bits, "pack-quantized", group_size=32))
    read = dict(dequantised(tensors, scheme))["a.q_proj.weight"]
    assert torch.equal(read, codes.float() - (1 << bits - 1))


CODES, ONES = torch.ones(4, 32).to(torch.float8_e4m3fn), torch.ones
WORDS = {"qweight": torch.ones(8, 32).int(), "scales": torch.ones(2, 32), "qzeros": torch.ones(2, 4).int()}
PACKED = {"weight_packed": ONES(4, 8).int(), "weight_scale": ONES(4, 2), "weight_shape": torch.tensor([4, 64])}
GROUPS = compressed(4, "pack-quantized", group_size=32)
BLOCKS = {"quant_method": "fp8", "weight_block_size": [2, 16]}
WRONG: list[tuple[dict[str, Any], dict[str, Tensor], str]] = [
    (FP8, {"weight": CODES.view(torch.uint8), "weight_scale": ONES(1)}, "weight of 2 dimensions in uint8"),
    (FP8, {"weight": CODES.float(), "weight_scale": ONES(1)}, "weight of 2 dimensions in float32"),
    (FP8, {"weight": CODES[None], "weight_scale": ONES(1)}, "weight of 3 dimensions"),
    (FP8, {"weight": CODES, "weight_scale": ONES(4, 1).byte()}, "scales in uint8"),
    (FP8, {"weight": CODES, "weight_scale": ONES(2, 1)}, "is 2 x 1, and .* says 1 x 1"),
    (FP8, {"weight": CODES, "weight_scale": ONES(1), "SCB": ONES(4)}, "SCB beside floats of 8 bits"),
    (FP8, {"weight": CODES}, "weight_scale is in no file"),
    (BLOCKS, {"weight": CODES, "weight_scale_inv": ONES(4, 2)}, "is 4 x 2, and .* says 2 x 2"),
    (MODELOPT, {"weight": CODES, "weight_scale": ONES(2, 1, 4, 1)}, "is 2 x 1 x 4 x 1, and"),
    (MODELOPT, {"weight": CODES, "weight_scale": ONES(1), "pre_quant_scale": ONES(32)}, "smoothing"),
    (GPTQ, {**WORDS, "scales": ONES(1, 32)}, "scales is 1 x 32, and .* says 2 x 32"),
    (GPTQ, {**WORDS, "g_idx": torch.full((64,), 2)}, "group 2 of 2"),
    (GPTQ, {**WORDS, "g_idx": torch.zeros(32)}, "g_idx is 32, and .* says 64"),
    (GROUPS, {**PACKED, "weight_g_idx": torch.zeros(32)}, "weight_g_idx is 32, and .* says 64"),
    (GROUPS, {**PACKED, "weight_g_idx": torch.zeros(1)}, "weight_g_idx is 1, and .* says 64"),
    (GPTQ, {"qweight": WORDS["qweight"], "scales": WORDS["scales"]}, "qzeros is in no file"),
    (GPTQ, {"weight": CODES}, "weight beside integers"),
    (BNB, {"weight": ONES(64, 1).byte(), "weight.absmax": ONES(2)}, "bitsandbytes__fp4 is in no file"),
    ({"quant_method": "mxfp4"}, {"weight": CODES}, "names none of mxfp4"),
]


@pytest.mark.parametrize(("config", "parts", "named"), WRONG)
def test_tensors_that_would_be_noise_are_refused_by_name(
    config: dict[str, Any], parts: dict[str, Tensor], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        list(read_weights({f"a.q_proj.{end}": part for end, part in parts.items()}, scheme_of("m", config)))


OLD_FILES: list[tuple[str, dict[str, Any], Any]] = [
    ("quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False, "damp_percent": 0.01}, gptq),
    ("quant_config.json", {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}, awq),
    (
        "hf_quant_config.json",
        {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}},
        fp8_rows,
    ),
]


@pytest.mark.parametrize(("name", "said", "pack"), OLD_FILES)
def test_a_config_of_the_tool_counts_where_config_json_says_nothing(
    name: str, said: dict[str, Any], pack: Any, tmp_path: Path
) -> None:
    """The weights were taken as plain numbers, without their scales."""
    expected = written(tmp_path, pack, {}).state_dict()
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"no quantization_config says what that stands for|weights are missing"):
        load_model(str(tmp_path), CPU, torch.float32)
    (tmp_path / name).write_text(json.dumps(said))
    found = load_model(str(tmp_path), CPU, torch.float32).state_dict()
    for key, weight in expected.items():
        torch.testing.assert_close(found[key], weight, rtol=1e-5, atol=1e-7)
    (tmp_path / name).write_text(json.dumps({**said, "more": 1, "quantization": {"more": 1, "quant_algo": "FP8"}}))
    with pytest.raises(ModelError, match=f"{name} has the key (more|quantization)"):
        load_model(str(tmp_path), CPU, torch.float32)


def test_weights_of_mlx_lm_are_refused_by_its_name(tmp_path: Path) -> None:
    written(tmp_path, gptq, {"group_size": 64, "bits": 4})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization": {"group_size": 64, "bits": 4}}))
    with pytest.raises(ModelError, match="weights as mlx-lm packs them, which duoactor does not read; choose"):
        load_config(str(tmp_path))


def test_heads_are_read_by_the_same_rules_as_targets(tmp_path: Path) -> None:
    """A config that was not checked gave a head of other weights than its publisher's."""
    expected = written(tmp_path, *CASES["FP8 by blocks"]).state_dict()
    read = tensors(str(tmp_path), lambda name: ".layers.1." in name)
    for name, weight in read.items():
        torch.testing.assert_close(weight, expected[name])
    assert len(read) == 9
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["weight_scale_semantics"] = "inverse"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="weight_scale_semantics 'inverse' in its"):
        tensors(str(tmp_path), lambda name: ".layers.1." in name)


class Alive(TorchDispatchMode):
    """The most bytes of tensors that lived at one time."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[weakref.ref[Tensor]] = []
        self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(made := function(*args, **(kwargs or {})), Tensor):
            self._made.append(weakref.ref(made))
            storages = [one.untyped_storage() for each in self._made if (one := each()) is not None]
            self.most = max(self.most, sum({each.data_ptr(): each.nbytes() for each in storages}.values()))
        return made


def test_the_numbers_of_experts_are_made_one_after_the_other():
    """All of them beside the whole would take its memory twice."""
    each = [[Dequantised((16, 32), partial(torch.full, (16, 32), part)) for part in (n, n + 0.5)] for n in range(8)]
    with Alive() as alive:
        found = Apart(each, transposed=True).values()
    assert found.shape == Apart(each, transposed=True).shape == (8, 32, 32) and alive.most < 1.5 * found.nbytes
    assert found[:, 0, ::16].tolist() == [[n, n + 0.5] for n in range(8)]
