"""Files written by the package gguf, read by ours."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from actors.engines.weights.faults import check_checkpoint
from actors.engines.weights.gguf import GGUF
from protocols.errors import ModelError

Tensors = dict[str, np.ndarray]


def write(path: Path, tensors: Tensors, split: tuple[int, int] | None = None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ß", "字", "\n"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0])
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    if split:
        writer.add_uint16("split.no", split[0])
        writer.add_uint16("split.count", split[1])
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def test_metadata_and_tensors_are_what_was_written(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": some(7, 64), "output_norm.weight": some(64), "experts": some(2, 3, 64)}
    file = GGUF(write(tmp_path / "model.gguf", tensors))
    assert file.architecture == "llama"
    assert file.of_architecture("block_count") == 2
    assert file.of_architecture("attention.layer_norm_rms_epsilon") == 1e-6
    assert [*file.metadata["tokenizer.ggml.tokens"]] == ["a", "ß", "字", "\n"]
    assert file.metadata["tokenizer.ggml.scores"].tolist() == [0.5, -1.0]
    assert file.metadata["tokenizer.ggml.add_bos_token"] is False
    assert file.bytes == sum(values.nbytes for values in tensors.values())
    for name, values in tensors.items():
        np.testing.assert_array_equal(file.tensors[name].values(), values)


def test_quantised_tensors_keep_their_blocks(tmp_path: Path) -> None:
    values = some(6, 96)
    writer = gguf.GGUFWriter(tmp_path / "q8.gguf", "llama")
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("w", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = GGUF(tmp_path / "q8.gguf").tensors["w"]
    assert stored.shape == (6, 96) and stored.kind.name == "Q8_0"
    np.testing.assert_array_equal(stored.rows, packed)
    np.testing.assert_allclose(stored.values(), values, atol=np.abs(values).max() / 200)


def test_any_part_of_a_split_model_gives_the_whole(tmp_path: Path) -> None:
    paths = [tmp_path / f"big-0000{n}-of-00002.gguf" for n in (1, 2)]
    for number, path in enumerate(paths):
        write(path, {f"blk.{number}.w": some(4, 32)}, (number, 2))
    for path in paths:
        assert sorted(GGUF(path).tensors) == ["blk.0.w", "blk.1.w"]
    paths[1].unlink()
    with pytest.raises(ModelError, match=r"one of 2 parts and big-00002-of-00002.gguf is not beside it"):
        GGUF(paths[0])


def test_a_part_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    first, second = (tmp_path / f"big-0000{n}-of-00002.gguf" for n in (1, 2))
    for number, path in enumerate((first, second)):
        write(path, {f"blk.{number}.w": some(4, 32)}, (number, 2))
    (tmp_path / "part0.gguf").write_bytes(first.read_bytes())
    with pytest.raises(ModelError, match=r"part0.gguf is part 1 of 2 by what it says, and not by its name; name all"):
        GGUF(tmp_path / "part0.gguf")
    second.write_bytes(first.read_bytes())
    with pytest.raises(ModelError, match=r"big-00002-of-00002.gguf is part 1 of 2 by what it says, and not by its"):
        GGUF(first)
    write(second, {"blk.0.w": some(4, 32)}, (1, 2))
    with pytest.raises(ModelError, match=r"blk.0.w is in .*big-00002-of-00002.gguf and in another part; download"):
        GGUF(first)


def test_a_file_cut_anywhere_is_refused_with_a_sentence(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", {"w": some(4, 32)}).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, len(whole) - 32, 7), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut.gguf"):
            GGUF(cut)


def test_a_file_that_ends_early_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path / "kept"))
    whole = write(tmp_path / "model.gguf", {"token_embd.weight": some(7, 64)}).read_bytes()
    for length in (len(whole) - 64, len(whole) // 2, 9):
        (tmp_path / "model.gguf").write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut off or damaged at byte .* of .*; download it again"):
            check_checkpoint(str(tmp_path / "model.gguf"))


def test_garbage_behind_the_magic_is_refused_with_a_sentence(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", {"w": some(4, 32)}).read_bytes()
    chance, damaged = np.random.default_rng(0), tmp_path / "damaged.gguf"
    for _ in range(200):
        data = np.frombuffer(whole, np.uint8).copy()
        data[chance.integers(4, 400, 8)] = chance.integers(0, 256, 8)
        damaged.write_bytes(data.tobytes())
        try:
            GGUF(damaged)
        except ModelError as error:
            assert "damaged.gguf" in str(error)


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        (b"GGLA", "does not begin with GGUF"),
        (b"GGUF\x01\0\0\0", "is of GGUF version 1"),
        (b"GGUF\0\0\0\x03", "is big endian"),
    ],
)
def test_other_containers_are_named(tmp_path: Path, patch: bytes, sentence: str) -> None:
    path = write(tmp_path / "model.gguf", {"w": some(4, 32)})
    path.write_bytes(patch + path.read_bytes()[len(patch) :])
    with pytest.raises(ModelError, match=sentence):
        GGUF(path)


def test_a_type_without_a_reader_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "iq1.gguf", "llama")
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.IQ2_XXS][1]
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((2, size), np.uint8), raw_dtype=gguf.GGMLQuantizationType.IQ2_XXS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"tensor blk.0.ffn_up.weight of .* is of type IQ2_XXS"):
        GGUF(tmp_path / "iq1.gguf")


def test_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a vocabulary and no weights"):
        GGUF(write(tmp_path / "vocab.gguf", {}))


@pytest.mark.parametrize(
    "kind, architecture, sentence",
    [
        ("adapter", "llama", "a LoRA adapter and no model; merge it into its model with llama-export-lora"),
        ("mmproj", "clip", "the part of a model that sees or hears and no model; give the file of the model"),
        ("", "clip", "the part of a model that sees or hears and no model; give the file of the model"),
        ("imatrix", "", "an importance matrix and no model; give the file of a model"),
        ("", "controlvector", "a control vector and no model; give the file of a model"),
    ],
)
def test_files_that_go_with_a_model_are_named(kind: str, architecture: str, sentence: str, tmp_path: Path) -> None:
    """As llama.cpp's tools write them."""
    writer = gguf.GGUFWriter(tmp_path / "with.gguf", architecture)
    if kind:
        writer.add_type(kind)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", some(4, 8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=rf"with\.gguf holds {sentence}"):
        check_checkpoint(str(tmp_path / "with.gguf"))


def test_a_file_that_its_writer_did_not_end_is_named(tmp_path: Path) -> None:
    """llama-quantize writes the header last: where it fails, zeros are in its place."""
    (tmp_path / "half.gguf").write_bytes(bytes(64) + b"numbers")
    with pytest.raises(ModelError, match=r"half\.gguf begins with zeros: it was not written to its end; make or down"):
        GGUF(tmp_path / "half.gguf")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*none.gguf: No such file"):
        GGUF(tmp_path / "none.gguf")
