"""Whatever a file says of sizes is held against its tensors and against what models have, before anything reads it."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.engines.build import EngineOptions, build_target
from actors.engines.decoder import bounds
from actors.engines.decoder.bounds import check_description
from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.families import describe
from actors.engines.decoder.spec import DecoderSpec, Experts
from actors.engines.decoder.weight_shapes import check_shapes
from actors.engines.weights.faults import check_checkpoint
from actors.engines.weights.gguf import GGUF
from actors.engines.weights.unneeded import refuse_unused
from protocols.errors import ModelError
from tests.engines.families import config_of, described, model_of
from tests.engines.weights.test_gguf_serving import mixed
from tests.fuzz.changed_gguf import fields_of
from tests.fuzz.changed_safetensors import saved

HUGE = (1 << 64) - 1


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def seed(family: str) -> Path:
        if family not in made:
            made[family] = Path(mixed(family, tmp_path_factory.mktemp("gguf")))
        return made[family]

    return seed


def changed(seed: Path, path: Path, field: str, value: int | float) -> Path:
    """A copy with another number in the field of that name."""
    data = bytearray(seed.read_bytes())
    [found] = [one for one in fields_of(bytes(data))[0] if one.name == field]
    code = "<f" if isinstance(value, float) else {1: "<B", 4: "<I", 8: "<Q"}[found.size]
    data[found.at : found.at + found.size] = struct.pack(code, value)
    path.write_bytes(data)
    return path


def refused(path: Path, sentence: str) -> None:
    """By the check before a start and by the start itself."""
    with pytest.raises(ModelError, match=sentence) as raised:
        check_checkpoint(str(path))
        build_target(str(path), EngineOptions(kv_tokens=512))
    assert "\n" not in str(raised.value) and str(raised.value).endswith("download it again")


@pytest.mark.parametrize(
    ("family", "field", "value", "sentence"),
    [
        ("llama", "llama.block_count", (1 << 32) - 1, "block_count in .*m.gguf is 4294967295, where a model has 2,048"),
        ("llama", "llama.block_count", 0, "block_count in .*m.gguf is 0, and a model has at least"),
        ("llama", "llama.block_count", 5, "no tensor blk.4."),
        ("llama", "llama.attention.head_count", 8, "attn_q.weight of .*m.gguf is 128 x 64, and .* 256 .heads"),
        ("llama", "llama.attention.head_count", 0, "attention.head_count in .*m.gguf is 0, and a model has at least"),
        (
            "llama",
            "llama.attention.head_count_kv",
            3,
            "attn_k.weight of .*m.gguf has 64 rows, which 3 heads cannot share",
        ),
        ("qwen3", "qwen3.attention.head_count_kv", 3, "4 heads of layer 0 cannot share 3 of keys"),
        ("llama", "llama.attention.key_length", 16, "rope.dimension_count in .*m.gguf is 32, and heads have 16"),
        ("llama", "llama.attention.key_length", 0, "rope.dimension_count in .*m.gguf is 32, and heads have 0"),
        ("llama", "llama.embedding_length", 128, "token_embd.weight of .*m.gguf is 96 x 64, and .* 128 .hidden size"),
        (
            "llama",
            "llama.feed_forward_length",
            64,
            "ffn_gate.weight of .*m.gguf is 96 x 64, and .* 64 .width of the MLP",
        ),
        ("llama", "llama.attention.layer_norm_rms_epsilon", float("nan"), "the eps is nan"),
        ("llama", "llama.rope.freq_base", 0.0, "(frequencies|describe)"),
        ("Phi3", "phi3.rope.dimension_count", 64, "rope.dimension_count in .*m.gguf is 64, and heads have 16"),
        ("Qwen3Moe", "qwen3moe.expert_used_count", 5, "5 of 4 experts of layer 0 are used"),
        ("Qwen3Moe", "qwen3moe.expert_count", 8, "ffn_gate_inp.weight of .*m.gguf is 4 x 32, and .* 8 .experts"),
        (
            "Qwen3Moe",
            "qwen3moe.expert_feed_forward_length",
            64,
            "ffn_gate_exps.weight and .* 64 x 32, and .* 128 .twice",
        ),
        ("Mixtral", "llama.expert_used_count", 0, "0 of 4 experts of layer 0 are used"),
        ("DeepseekV3", "deepseek2.expert_group_count", 3, "4 experts of layer 1 make no 3 groups"),
        (
            "DeepseekV3",
            "deepseek2.attention.kv_lora_rank",
            64,
            "attn_kv_a_mqa.weight of .*m.gguf is 32 x 32, and .* 80 .rank",
        ),
        (
            "DeepseekV3",
            "deepseek2.attention.q_lora_rank",
            48,
            "attn_q_b.weight of .*m.gguf is 48 x 16, and .* 48 .rank of",
        ),
        ("qwen35", "qwen35.ssm.conv_kernel", 1 << 20, "the length of the convolution of layer 0 is 1048576"),
        ("qwen35", "qwen35.ssm.group_count", 3, "(cannot share 3 of keys|describe)"),
        ("Gemma4", "gemma4.attention.key_length_swa", 64, "attn_q.weight of .*m.gguf is 32 x 32, and .* 128 .heads"),
        ("Lfm2", "lfm2.shortconv.l_cache", 4, "shortconv.conv.weight of .*m.gguf is 32 x 1 x 3"),
    ],
)
def test_metadata_of_a_gguf_file_that_do_not_fit_it_are_refused(
    seeds: Callable[[str], Path], tmp_path: Path, family: str, field: str, value: int | float, sentence: str
) -> None:
    refused(changed(seeds(family), tmp_path / "m.gguf", field, value), sentence)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("count of tensors", HUGE, "cut off or damaged"),
        ("count of entries", HUGE, "cut off or damaged"),
        ("count of tokenizer.ggml.tokens", HUGE, "cut off or damaged"),
        ("count of tokenizer.ggml.tokens", 1 << 31, "cut off or damaged"),
        ("dimension 0 of token_embd.weight", HUGE, "cut off or damaged|lies within"),
        ("dimension 0 of token_embd.weight", 0, "is empty"),
        ("dimension 1 of token_embd.weight", 95, "96 tokens in tokenizer.ggml.tokens and 95 rows in token_embd.weight"),
        ("offset of output_norm.weight", HUGE, "cut off or damaged"),
        ("offset of output_norm.weight", 32, "tensor .* lies within tensor"),
        ("tokenizer.ggml.bos_token_id", 1 << 31, ""),
    ],
)
def test_counts_and_places_in_a_gguf_file_are_held_against_its_length(
    seeds: Callable[[str], Path], tmp_path: Path, field: str, value: int, sentence: str
) -> None:
    path = changed(seeds("llama"), tmp_path / "m.gguf", field, value)
    if sentence:
        refused(path, sentence)
    else:
        build_target(str(path), EngineOptions(kv_tokens=512))  # as if it named none


def test_a_shape_with_as_many_numbers_is_refused(seeds: Callable[[str], Path], tmp_path: Path) -> None:
    path = changed(seeds("llama"), tmp_path / "m.gguf", "dimension 0 of blk.0.attn_k.weight", 32)
    changed(path, path, "dimension 1 of blk.0.attn_k.weight", 128)
    refused(path, "blk.0.attn_k.weight of .*m.gguf is 128 x 32, and its configuration says 64 .key heads")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("whole") / "Qwen3Moe", "Qwen3Moe", False)


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def edit(model: Path, **changes: Any) -> None:
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers in .*config.json is 1099511627776, where"),
        ({"num_hidden_layers": 9, "layer_types": None}, "says 9 layers, and the weights are of 3"),
        ({"hidden_size": 1 << 40}, "hidden_size in .*config.json is"),
        ({"num_experts_per_tok": 5}, "5 of 4 experts of layer 0 are used"),
        ({"head_dim": 0}, "head width|describe|no configuration|cannot be loaded"),
        ({"head_dim": -16}, "the head width of layer 0 is -16|describe"),
        ({"num_key_value_heads": 3}, "4 heads of layer 0 cannot share 3 of keys"),
        ({"dtype": 5.5}, "dtype in .*config.json"),
        ({"max_position_embeddings": 0}, "max_position_embeddings of .*model is 0; download it again"),
        ({"max_position_embeddings": -512}, "max_position_embeddings of .*model is -512; download it again"),
    ],
)
def test_a_configuration_that_no_model_has_is_refused(model: Path, changes: dict[str, Any], sentence: str) -> None:
    edit(model, **changes)
    with pytest.raises(ModelError, match=sentence):
        check_checkpoint(str(model))
        build_target(str(model), EngineOptions(kv_tokens=512))


def test_weights_that_were_replaced_behind_a_start_are_measured_again(model: Path, monkeypatch, tmp_path: Path) -> None:
    """A later start takes weights out of their files, by what an earlier one has found of them."""
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path / "kept"))
    build_target(str(model), EngineOptions(kv_tokens=512))
    file = model / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] = torch.ones(32)
    save_file(weights, file)
    with pytest.raises(ModelError, match=r"model.norm.weight"):
        build_target(str(model), EngineOptions(kv_tokens=512))


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/dev/zero", "a/b.safetensors", "..", "", 5, None, "x\0.safetensors"]
)
def test_an_index_that_names_files_elsewhere_is_refused(model: Path, name: Any) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    (model.parent / "x.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    refused(model, "model.safetensors.index.json")


@pytest.mark.parametrize("number", [1 << 24, -1, 1.5, "1", None])
def test_an_id_that_no_vocabulary_has_is_refused(model: Path, number: Any) -> None:
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"]["ab100"] = number
    file.write_text(json.dumps(content))
    refused(model, "tokenizer.json is no number of a token")


def test_a_generation_config_that_is_no_json_is_refused(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path / "kept"))
    model = saved(tmp_path / "Llama", "Llama", False)
    build_target(str(model), EngineOptions(kv_tokens=512))
    (model / "generation_config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ModelError, match=r"generation_config.json"):
        build_target(str(model), EngineOptions(kv_tokens=512))


@pytest.mark.parametrize("family", described())
def test_every_described_family_has_the_shapes_of_its_description(family: str) -> None:
    spec, named = described()[family], model_of(family).state_dict()
    seen: set[str] = set()

    def shape_of(name: str) -> tuple[int, ...] | None:
        seen.add(name)
        return tuple(named[name].shape) if name in named else None

    check_shapes(spec, shape_of, str, spec.vocabulary)
    refuse_unused(family, named.keys() - seen, len(spec.layers))


def test_a_shape_of_each_weight_is_compared() -> None:
    """One more row of any is told by its name."""
    model = model_of("DeepseekV3")
    spec, named = describe(model.config), dict(model.named_parameters())
    for name in named:

        def shape_of(one: str, name: str = name) -> list[int] | None:
            return None if one not in named else [size + (one == name) for size in named[one].shape]

        with pytest.raises(ModelError, match=name.replace(".", r"\.")):
            check_shapes(spec, shape_of, str, spec.vocabulary)


def experts_of(spec: DecoderSpec, **changes: Any) -> DecoderSpec:
    def other(layer: Any) -> Any:
        return replace(layer, mlp=replace(layer.mlp, **changes)) if isinstance(layer.mlp, Experts) else layer

    return replace(spec, layers=tuple(map(other, spec.layers)))


def test_experts_that_cannot_be_chosen_are_refused() -> None:
    spec = describe(config_of("DeepseekV3"))
    check_description("x", spec)
    routing = next(layer.mlp.routing for layer in spec.layers if isinstance(layer.mlp, Experts))
    for changes in ({"used": 3}, {"used": 0}, {"count": 5}, {"routing": replace(routing, best=3)}):
        with pytest.raises(ModelError, match="experts of layer 1"):
            check_description("x", experts_of(spec, **changes))


def test_a_file_with_two_tensors_of_a_name_is_refused(seeds: Callable[[str], Path], tmp_path: Path) -> None:
    data = seeds("llama").read_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(data.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"))
    with pytest.raises(ModelError, match="is there twice"):
        GGUF(path)


@pytest.mark.parametrize("value", [None, "2", [2]])
def test_numbers_of_a_description_that_are_none_are_refused_by_name(value: Any) -> None:
    spec = spec_of(config_of("Qwen3Moe"))
    assert spec is not None
    wrong = [experts_of(spec, used=value), experts_of(spec, inner=value), replace(spec, hidden=value)]
    wrong.append(replace(spec, norm=replace(spec.norm, eps=value)))
    for description, name in zip(wrong, ("used", "inner", "hidden", "eps"), strict=True):
        with pytest.raises(ModelError, match=rf"does not describe a model: {name} of \w+ is "):
            check_description("x", description)


def test_a_part_that_all_layers_share_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's start describes it ten times."""
    looked, fields = [], bounds._fields

    def counted(kind: type) -> Any:
        looked.append(kind)
        return fields(kind)

    monkeypatch.setattr(bounds, "_fields", counted)
    spec = describe(config_of("Qwen3Moe"))
    looked.clear()
    check_description("x", spec)
    once = len(looked)
    check_description("x", replace(spec, layers=spec.layers * 50))
    assert len(looked) == 2 * once + 49 * len(spec.layers)
