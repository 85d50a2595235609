"""What is wrong with a model directory is one sentence that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.engines.weights.faults import check_checkpoint, check_tokenizer
from actors.engines.weights.tensor_files import weight_files
from protocols.errors import ModelError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"


def safetensors(*names: str) -> bytes:
    entries = {name: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i, name in enumerate(names)}
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8 * len(names))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": False}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors("model.embed_tokens.weight", "lm_head.weight"))
    return tmp_path


def shard(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    names = {"model.embed_tokens.weight": "model-00001-of-00002.safetensors", "x": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (model / "model-00002-of-00002.safetensors").write_bytes(safetensors("x"))


def refused(model: Path, text: str) -> None:
    with pytest.raises(ModelError, match=text) as raised:
        check_checkpoint(str(model))
    assert "\n" not in str(raised.value)


def test_a_whole_model_passes_in_one_file_or_in_shards(model: Path):
    check_checkpoint(str(model))
    shard(model)
    check_checkpoint(str(model))


def test_a_hub_id_and_a_file_pass_unchecked(model: Path):
    check_checkpoint("org/name")
    check_checkpoint(str(model / "config.json"))


@pytest.mark.parametrize("left", [0, 7, 20, 120, -1])
def test_a_file_that_is_cut_short_says_so(model: Path, left: int):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    refused(model, "model.safetensors is cut short, .* bytes of at least .*: download it again")


@pytest.mark.parametrize("content", [b"<html>not found</html>", safetensors("a").replace(b"{", b"[")])
def test_a_file_of_another_kind_under_that_name_is_refused(model: Path, content: bytes):
    (model / "model.safetensors").write_bytes(content)
    refused(model, "model.safetensors is no safetensors file: download it again")


def test_missing_shards_are_counted_and_the_first_is_named(model: Path):
    shard(model)
    (model / "model-00002-of-00002.safetensors").unlink()
    refused(model, "lacks 1 of its 2 files of weights, model-00002-of-00002.safetensors first: download it again")


def test_an_index_that_an_older_model_left_names_no_file_of_this_one(model: Path):
    """transformers removes the parts of a model that it writes over, and leaves their index."""
    whole = (model / "model.safetensors").read_bytes()
    shard(model)
    (model / "model.safetensors").write_bytes(whole)
    refused(model, "holds two models, model.safetensors and the files that model.safetensors.index.json names; remove")
    for part in model.glob("model-*"):
        part.unlink()
    check_checkpoint(str(model))
    assert weight_files(model) == [model / "model.safetensors"]


NAMED = "transformers_weights"


def test_the_file_that_a_configuration_names_is_the_one_that_counts(model: Path):
    """As in transformers, whatever lies beside it."""
    config = json.loads((model / "config.json").read_text())
    shard(model)
    (model / "model.safetensors.index.json").rename(model / "own.safetensors.index.json")
    (model / "model.safetensors").write_bytes(b"another model")
    shards = [model / f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name, files in (("own.safetensors.index.json", shards), (shards[0].name, shards[:1])):
        (model / "config.json").write_text(json.dumps({**config, NAMED: name}))
        assert weight_files(model) == files
        check_checkpoint(str(model))
    (model / "model.safetensors").unlink()
    check_checkpoint(str(model))


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "pytorch_model.bin", "", 5, ["a"]])
def test_a_configuration_that_names_no_safetensors_beside_it_is_refused(model: Path, name: object):
    (model / "config.json").write_text(json.dumps({"model_type": "llama", NAMED: name}))
    refused(model, "transformers_weights in .*config.json is .*, which names no safetensors beside it; download")


def test_a_named_file_that_is_not_there_is_refused(model: Path):
    (model / "config.json").write_text(json.dumps({"model_type": "llama", NAMED: "own.safetensors"}))
    refused(model, "lacks own.safetensors, which transformers_weights in its config.json names: download it again")


def test_a_tensor_in_two_files_is_refused(model: Path):
    shard(model)
    (model / "model-00002-of-00002.safetensors").write_bytes(safetensors("x", "lm_head.weight"))
    refused(
        model, "lm_head.weight is in .*model-00002-of-00002.safetensors and in another file of that model; download"
    )


@pytest.mark.parametrize("name", ["model.fp16.safetensors", "model-00001-of-00001.safetensors", "adapter_model.bin"])
def test_weights_under_a_name_that_is_not_loaded_are_refused(model: Path, name: str):
    (model / "model.safetensors").rename(model / name)
    refused(model, f"has weights in {name}, and neither model.safetensors nor .*: download it again, or name its only")


def test_a_gguf_file_beside_a_configuration_is_to_be_named(model: Path):
    (model / "model.safetensors").rename(model / "model-Q4_0.gguf")
    refused(model, "has weights in model-Q4_0.gguf, and neither .*: give .*model-Q4_0.gguf itself")


def test_a_directory_without_weights_is_refused(model: Path):
    (model / "model.safetensors").unlink()
    refused(model, "holds no weights, such as model.safetensors: download it again")


@pytest.mark.parametrize(
    "files, program",
    [
        (["model.onnx"], "ONNX Runtime"),
        (["openvino_model.xml", "openvino_model.bin"], "OpenVINO"),
        (["mlc-chat-config.json", "params_shard_0.bin"], "MLC"),
        (["shared_vocabulary.json", "model.bin"], "CTranslate2"),
        (["model.pte"], "ExecuTorch"),
        (["rank0.engine"], "TensorRT-LLM"),
        (["consolidated.00.pth"], "Meta's own code"),
        (["tf_model.h5"], "TensorFlow"),
        (["flax_model.msgpack"], "Flax"),
    ],
)
def test_a_model_for_another_program_is_refused_by_its_name_where_no_other_is_there(
    model: Path, files: list[str], program: str
):
    for name in files:
        (model / name).write_bytes(b"{}")
    check_checkpoint(str(model))  # the safetensors beside it count
    (model / "model.safetensors").unlink()
    refused(model, rf"{files[0]} is a model for {program}, which duoactor does not read; give that model's safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "pytorch_model.bin"])
def test_a_git_lfs_pointer_says_how_to_get_the_file(model: Path, name: str):
    if name.endswith(".bin"):
        (model / "model.safetensors").unlink()
    (model / name).write_text(POINTER)
    refused(model, f"{name} is a Git LFS pointer, not the file itself: run `git lfs pull` in")


def test_an_untied_head_without_weights_is_refused(model: Path):
    (model / "model.safetensors").write_bytes(safetensors("model.embed_tokens.weight"))
    refused(model, "has no output head: .* set tie_word_embeddings to true")
    (model / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    check_checkpoint(str(model))


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}}, ("model.embed_tokens.weight",)),
        ({"text_config": {"tie_word_embeddings": False}}, ("model.embed_tokens.weight",)),
        ({"tie_word_embeddings": False}, ("model.embed_tokens.weight", "head.weight")),
    ],
    ids=["the outer configuration ties", "its default may tie", "the head has another name"],
)
def test_a_head_that_transformers_finds_is_not_missed(model: Path, config, names):
    (model / "config.json").write_text(json.dumps(config))
    (model / "model.safetensors").write_bytes(safetensors(*names))
    check_checkpoint(str(model))


def test_a_lora_adapter_says_into_what_it_is_merged(model: Path):
    (model / "config.json").unlink()
    (model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    refused(model, "is a LoRA adapter and no model: merge it into org/base")


def test_a_lora_adapter_beside_a_model_is_not_left_out(model: Path):
    (model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    refused(model, "holds a LoRA adapter beside its model, and answers .* org/base .*, or remove adapter_config.json")
    (model / "model.safetensors").rename(model / "adapter_model.safetensors")
    refused(model, "is a LoRA adapter and no model: merge it into org/base")


def test_a_configuration_that_is_no_json_is_refused(model: Path):
    (model / "config.json").write_text("{")
    refused(model, "config.json cannot be read as JSON: download it again")


def test_a_directory_without_a_configuration_is_refused(model: Path):
    (model / "config.json").unlink()
    refused(model, "holds no config.json, so it is not a Hugging Face model directory")


def test_a_directory_of_gguf_files_says_to_name_one(model: Path):
    (model / "config.json").unlink()
    (model / "model-q4_k_m.gguf").touch()
    refused(model, "holds no config.json: give .*/model-q4_k_m.gguf itself")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "qwen.tiktoken"])
def test_a_directory_without_a_tokenizer_of_any_kind_is_refused(model: Path, name: str):
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"has no tokenizer that can be loaded; add tokenizer\.json to it"):
        check_tokenizer(str(model))
    (model / name).write_text("{}")
    check_tokenizer(str(model))


@pytest.mark.parametrize(("content", "text"), [(b"", "is no GGUF file"), (POINTER.encode(), "is a Git LFS pointer")])
def test_a_gguf_file_that_is_none_is_refused(tmp_path: Path, content: bytes, text: str):
    (tmp_path / "model.gguf").write_bytes(content)
    refused(tmp_path / "model.gguf", text)
