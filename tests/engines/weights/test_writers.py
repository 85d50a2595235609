"""Files that real quantisers wrote: the numbers that are multiplied are the tool's own, or the file is refused."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.gpu.groups import _sent
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.weights.faults import quantisation_of
from actors.engines.weights.loading import load_for_engine, load_model
from actors.engines.weights.matrix import Matrix
from actors.engines.weights.quantised import read_weights
from actors.engines.weights.quantisers import scheme_of
from actors.engines.weights.stored import StoredModel
from actors.engines.weights.tensor_files import TensorFiles, weight_files
from actors.models import ModelInfo
from protocols.errors import ModelError
from tools.writers.table import PAGE, page

WRITTEN = Path(__file__).parents[2] / "data" / "writers"
FOUND = sorted(place.name for place in WRITTEN.iterdir() if place.is_dir())
READ = [name for name in FOUND if (WRITTEN / name / "numbers.safetensors").exists()]
REFUSED = {
    "autoround-fp8-block": "the key activation_scheme in its quantization_config of auto-round",
    "autoround-fp8-static": "the key activation_scheme in its quantization_config of auto-round",
    "autoround-int8": "packing_format 'auto_round:fake' in its quantization_config of auto-round",
    "autoround-mxfp8": "data_type 'mx_fp' in its quantization_config of auto-round",
    "autoround-nvfp4": "data_type 'nv_fp' in its quantization_config of auto-round",
    "autoround-mxfp4": "data_type 'mx_fp' in its quantization_config of auto-round",
    "awq-gemv": "version 'gemv' in its quantization_config of awq",
    "awq-marlin": "version 'marlin' in its quantization_config of awq",
    "ct-new-mxfp6": "format 'mxfp6-pack-quantized' in its quantization_config of compressed-tensors",
    "ct-quip": "rotations at run time in transform_config.v of compressed-tensors",
    "ct-sparse-24": "sparsity_config.format 'sparse-24-bitmask' of compressed-tensors",
    "ct-sparse-24-fp8": "sparsity_config.format 'sparse-24-bitmask' of compressed-tensors",
    "ct-spin-heads": "rotations at run time in transform_config.R3 of compressed-tensors",
    "ct-spin-online": "rotations at run time in transform_config.R4 of compressed-tensors",
    "gptq-fp8": "weight_scale_semantics 'inverse' in its quantization_config of fp8, as GPTQModel writes it",
    "gptq-gguf": "GPTQModel in the layout of GGUF",
    "gptq-p": "checkpoint_format 'gptq_p' in its quantization_config of gptq",
    "modelopt-fp8-block": "quant_algo 'fp8_pb_wo' in its quantization_config of modelopt",
    "modelopt-int4-awq": "quant_algo 'W4A16_AWQ' in its quantization_config of modelopt",
    "modelopt-nvfp4-32": "config_groups.group_0.weights.group_size 32 in its quantization_config of modelopt",
    "modelopt-nvfp4-awq": "quant_algo 'NVFP4_AWQ' in its quantization_config of modelopt",
    "modelopt-nvfp4-fp8": "quant_algo 'W4A8_NVFP4_FP8' in its quantization_config of modelopt",
    "modelopt-nvfp4-svd": r"config_groups\[\.\.\.\]\.pre_quant_scale 'True' in its quantization_config of modelopt",
    "modelopt-mxfp4": "quant_algo 'mxfp4' in its quantization_config of modelopt",
    **{name: "weights as mlx-lm packs them" for name in FOUND if name.startswith("mlx-")},
    **{name: "Quark" for name in FOUND if name.startswith("quark-") and "-for-" not in name},
    "quark-for-awq-order": "export.pack_method 'order' in its quantization_config of awq",
    "hqq": "HQQ or SINQ",
    **{name: "torchao" for name in FOUND if name.startswith("torchao-")},
    "quanto": "quanto",
    "sinq": "SINQ",
    "modelopt-w4a8-awq": "quant_algo 'W4A8_AWQ' in its quantization_config of modelopt",
}
BY_TENSORS = {  # which alone show what is not read, or what the tool wrote wrongly
    "autoround-awq-mixed": r"down_proj\.scales is 6 x 64, and its quantization_config says 3 x 64: the tool that",
    "gptq-old-dynamic": r"down_proj\.qzeros are 112 to 112, and its quantization_config says symmetric integers of 8",
    "gptq-old-order-3": r"_proj has zero points of 3 bits, which GPTQModel before 7\.3\.6 may have stored as",
    "gptqmodel-awq-groups": r"up_proj\.scales is 2 x 128, and its quantization_config says 1 x 128: the tool that",
    "quark-for-awq": r"embed_tokens\.scales is in no file, beside its layer's qweight: the tool that",
    "modelopt-int8-smooth": r"down_proj has pre_quant_scale, a factor of the inputs \(modelopt\), which",
    "sinq-tensors": r"_proj\.W_q in U8, a name that only HQQ or SINQ gives, which duoactor does not read; choose",
    "fp8-experts": r"experts\.0\.down_proj\.weight_scale is in no file, beside its layer's weight: the tool that",
    "fp8-odd": r"down_proj has a weight of 2 dimensions in bfloat16 where floats of 8 bits, .* are said,",
}
KINDS_REFUSED = [name for name in FOUND if name.startswith("gguf-") and name not in READ]
CPU, INFO = torch.device("cpu"), ModelInfo("tiny", 64, 128, frozenset({2}), "tiny-tokenizer")


INTEGERS = {"gptq-4", "gptq-asym", "awq-gemm", "ct-w4", "ct-w4-asym", "ct-w8", "ct-w8a8", "bnb-int8"}


def test_each_file_is_read_or_refused_by_a_sentence() -> None:
    assert set(FOUND) - set(READ) == REFUSED.keys() | BY_TENSORS.keys() | set(KINDS_REFUSED)


def test_the_page_about_weights_has_the_lists_of_files_architectures_and_blocks() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run python -m tools.writers.table"


def model_of(name: str) -> str:
    """The GGUF file, the first of its parts, or the directory."""
    place = WRITTEN / name / "model"
    return str(next(iter(sorted(place.glob("*.gguf"))), place))


def summed(weight: Tensor) -> Tensor:
    """Each row's numbers times 1, 2, 3 …, as tools/writers/base.py sums them."""
    weight = weight.flatten(0, -2)
    return (weight.double() @ torch.arange(1.0, 1 + weight.shape[1]).double()).float()


@pytest.mark.parametrize("name", READ)
def test_the_numbers_and_the_greedy_tokens_are_those_of_the_tool(name: str) -> None:
    said = json.loads((WRITTEN / name / "said.json").read_text())
    model: Any = load_model(model_of(name), CPU, torch.float32)
    weights, compared = model.state_dict(), 0
    for key, wanted in load_file(WRITTEN / name / "numbers.safetensors").items():
        weight, _, what = key.rpartition(".")
        found = weights[weight].flatten(0, -2)[-1] if what == "last" else summed(weights[weight])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
        compared += 1
    assert compared >= 16  # two of each of seven matrices and of the embedding
    ids = list(said["prompt"])
    with torch.no_grad():
        for _ in said["tokens"]:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert ids[len(said["prompt"]) :] == said["tokens"]


@pytest.mark.parametrize("name", [name for name in READ if not name.startswith("gguf-")])
def test_what_a_gpu_is_sent_of_a_file_has_its_numbers(name: str) -> None:
    place = WRITTEN / name / "model"
    scheme = quantisation_of(place)
    assert scheme is not None
    for weight in dict(read_weights(TensorFiles(weight_files(place)), scheme)).values():
        for blocks in () if isinstance(weight, Tensor) or len(weight.shape) > 2 else weight.blocks() or ():
            order = torch.randperm(len(blocks))
            right = weight.values()[order]
            matrix = _sent(Matrix.of_blocks(blocks.in_order(order.numpy())), CPU)
            assert matrix.nbytes >= blocks.nbytes_on_gpu  # rows and inputs fill up
            near = 1e-6 if not blocks.on_cpu else 1e-3  # scales of integers are rounded to float16
            found = matrix.rows(torch.arange(len(right)), torch.float32)
            assert (found - right).abs().max() <= near * float(right.abs().max())


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
@pytest.mark.parametrize("name", READ)
def test_compiled_layers_compute_with_the_numbers_of_the_tool(name: str) -> None:
    """Products with integers round their inputs to 8 bits."""
    place, said = model_of(name), json.loads((WRITTEN / name / "said.json").read_text())
    tokens = [*said["prompt"], *said["tokens"]]
    with torch.no_grad():
        model: Any = load_model(place, CPU, torch.float32)
        expected = model(torch.tensor([tokens])).logits[0]
    batch, places = FlatBatch(), [*range(len(tokens))]
    batch.add(0, tokens, places, places, causal(0, len(tokens)))
    stored: Any = load_for_engine(place, CPU, torch.float32)
    assert isinstance(stored, StoredModel)
    if name in INTEGERS:
        assert stored.source.blocks("model.layers.0.mlp.up_proj.weight") is not None, "they are multiplied as they are"
    found = CompiledEngine(stored, INFO, 128).forward(batch)
    assert (found - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("name", KINDS_REFUSED)
def test_kinds_of_blocks_that_are_not_read_are_refused_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=r"of type (IQ[123]_|TQ[12]_0|Q2_0)\w*, which duoactor does not read; choose"):
        load_model(model_of(name), CPU, torch.float32)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_before_it_is_loaded(name: str) -> None:
    with pytest.raises(ModelError, match=rf"\.(json|pt) has {REFUSED[name]}, which duoactor does not read; choose"):
        load_model(model_of(name), CPU, torch.float32)


def test_zero_points_are_taken_from_the_first_gptqmodel_whose_files_were_right() -> None:
    """Files of 7.3.6, 7.5.0, 7.6.0 and 7.7.0 had its own numbers; those of 5.8.0, 6.0.3 and 7.0.0 had not."""
    config = json.loads((WRITTEN / "gptq-order-3" / "model" / "config.json").read_text())["quantization_config"]
    for version, right in (("7.0.0", False), ("7.3.5", False), ("7.3.6", True), ("7.5.0", True), ("7.10.0", True)):
        scheme = scheme_of("x", {**config, "meta": {"quantizer": [f"gptqmodel:{version}"]}})
        if right:
            assert scheme.form("model.layers.0.mlp.down_proj") is not None
        else:
            with pytest.raises(ModelError, match=r"zero points of 3 bits, which GPTQModel before 7\.3\.6 may have"):
                scheme.form("model.layers.0.mlp.down_proj")


def test_auto_rounds_own_awq_is_read_in_4_bits_alone() -> None:
    config = json.loads((WRITTEN / "autoround-own-awq/model/config.json").read_text())["quantization_config"]
    scheme = scheme_of("x", {**config, "extra_config": {"down": {"bits": 8}, "up": {"bits": 16}}})
    assert scheme.form("up") is None and str(scheme.form("gate")).startswith("integers of 4 bits")
    with pytest.raises(ModelError, match="down has AWQ of 8 bits, which duoactor does not read; choose"):
        scheme.form("down")


def test_groups_of_another_size_are_refused_by_the_tools_own_file_too(tmp_path: Path) -> None:
    for name, text in (
        ("config.json", '{"model_type": "llama"}'),
        ("hf_quant_config.json", (WRITTEN / "modelopt-nvfp4-32/model/hf_quant_config.json").read_text()),
    ):
        (tmp_path / name).write_text(text)
    with pytest.raises(
        ModelError, match=r"hf_quant_config\.json has group_size 32 in its quantization_config of model"
    ):
        quantisation_of(tmp_path)


@pytest.mark.parametrize("name", BY_TENSORS)
def test_what_tensors_alone_show_is_refused_by_its_layer(name: str) -> None:
    for load in (load_model, load_for_engine):
        with pytest.raises(ModelError, match=BY_TENSORS[name]) as told:
            load(model_of(name), CPU, torch.float32)
        assert model_of(name) in str(told.value)


OF_EXPERT = re.compile(r"(.*\.experts\.1\.(?:up_proj|w3))\..*")
WITH_EXPERTS = [name for name in READ if not name.startswith("gguf-") and ("experts" in name or "mixtral" in name)]


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_an_expert_that_no_file_holds_is_missed_by_its_own_name(name: str, tmp_path: Path) -> None:
    place = tmp_path / "model"
    shutil.copytree(WRITTEN / name / "model", place)
    tensors = load_file(place / "model.safetensors")
    lost = [key for key in tensors if OF_EXPERT.fullmatch(key)]
    save_file({key: one for key, one in tensors.items() if key not in lost}, place / "model.safetensors")
    layers = {match[1] for match in map(OF_EXPERT.fullmatch, lost) if match is not None}
    with pytest.raises(ModelError, match=r"model has no|\S+ is in no file, besides the model's other experts") as told:
        load_for_engine(str(place), CPU, torch.float32)
    assert any(f"{layer} is in no file" in str(told.value) for layer in layers), str(told.value)


@pytest.mark.parametrize("name, end", [("gptqmodel-awq", "qweight"), ("gptq-4", "qweight"), ("ct-w4", "weight_packed")])
@pytest.mark.parametrize("change", ["floats", "flat", "whole scales"])
def test_codes_and_scales_of_another_type_are_refused_by_their_layer(name: str, end: str, change: str) -> None:
    """Floats in place of words lose bits: the numbers would be noise."""
    place, layer = WRITTEN / name / "model", "model.layers.0.mlp.up_proj"
    tensors = load_file(place / "model.safetensors")
    if change == "whole scales":
        key = f"{layer}.{'weight_scale' if end == 'weight_packed' else 'scales'}"
        tensors[key] = tensors[key].int()
    else:
        words = tensors[f"{layer}.{end}"]
        tensors[f"{layer}.{end}"] = words.float() if change == "floats" else words.flatten()
    scheme = quantisation_of(place)
    assert scheme is not None
    with pytest.raises(ModelError, match=rf"{layer} has codes of \d dimensions in \w+ with scales in \w+, which"):
        dict(read_weights(tensors, scheme))


@pytest.mark.parametrize("loaded", [load_model, load_for_engine])
@pytest.mark.parametrize("name, rows", [("ct-experts", 1), ("ct-experts", 32), ("ct-experts-fp8", 1)])
@pytest.mark.parametrize("part", ["gate_proj", "down_proj"])
def test_an_expert_of_another_shape_than_the_rest_is_refused_by_its_name(
    loaded: Any, name: str, rows: int, part: str, tmp_path: Path
) -> None:
    """A row alone would fill a whole matrix, and rows that a gate lacks would be the up's."""
    copytree(WRITTEN / name / "model", tmp_path / "m")
    file, layer = tmp_path / "m" / "model.safetensors", "model.layers.0.mlp.experts.1"
    tensors = load_file(file)
    for key in [key for key in tensors if key.startswith(f"{layer}.{part}.")]:
        shape = key.endswith("weight_shape")
        tensors[key] = torch.tensor([rows, int(tensors[key][1])]) if shape else tensors[key][:rows].clone()
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ModelError, match=rf"in {tmp_path}/m, {layer}\.{part}\.weight is {rows} x \d+, and others of"):
        loaded(str(tmp_path / "m"), CPU, torch.float32)


@pytest.mark.parametrize(
    "name, end, kind, read",
    [
        ("gptq-order", "g_idx", torch.float32, "int32 or int64"),
        ("ct-old-order", "weight_g_idx", torch.bfloat16, "int32 or int64"),
        ("ct-w4", "weight_shape", torch.float32, "int32 or int64"),
        ("ct-new-w4-tensor", "weight_zero_point", torch.float16, "int8"),
        ("ct-new-w4-tensor", "weight_zero_point", torch.uint8, "int8"),
        ("bnb-int8", "SCB", torch.int32, "float32 or bfloat16"),
    ],
)
def test_parts_of_another_type_are_refused_by_their_name(name: str, end: str, kind: torch.dtype, read: str) -> None:
    """Fractions would be cut off, and a sign would be lost."""
    place, key = WRITTEN / name / "model", f"model.layers.0.mlp.up_proj.{end}"
    tensors = load_file(place / "model.safetensors")
    tensors[key] = tensors[key].to(kind)
    scheme = quantisation_of(place)
    assert scheme is not None
    with pytest.raises(ModelError, match=rf"{key} has numbers in \w+, which .*; choose a checkpoint with {read}"):
        dict(read_weights(tensors, scheme))
