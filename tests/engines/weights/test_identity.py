"""What tells one model from another: its files, wherever they lie and however old they are."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import duoactor
from actors.engines.weights.identity import BEGINNING, identity
from actors.engines.weights.loading import checkpoint_of

TARGET = Path(duoactor.__file__).parent / "pair" / "target"


@pytest.fixture
def copy(tmp_path):
    directory = tmp_path / "elsewhere"
    shutil.copytree(TARGET, directory)
    os.utime(directory / "model.safetensors", (1, 1))
    return directory


def told(directory, digest="d"):
    return identity(checkpoint_of(str(directory)), checkpoint_of(str(directory)), digest)


def test_a_copy_has_the_identity_of_the_original(copy):
    assert told(copy) == told(TARGET) and len(told(copy)) == 32


def test_weights_that_were_trained_on_are_another_model(copy):
    file = copy / "model.safetensors"
    numbers = np.frombuffer(file.read_bytes(), np.uint8).copy()
    numbers[2 * BEGINNING :] ^= 1  # the table of tensors, and the file's size, stay
    before = told(copy)
    file.write_bytes(numbers.tobytes())
    assert told(copy) != before


@pytest.mark.parametrize("change", ["cut", "longer", "config.json", "chat_template.jinja", "generation_config.json"])
def test_other_sizes_and_other_texts_are_another_model(copy, change):
    before, weights = told(copy), copy / "model.safetensors"
    content = weights.read_bytes()
    if change == "cut":
        weights.write_bytes(content[:-1])
    elif change == "longer":
        weights.write_bytes(content + b"\0")
    else:
        (copy / change).write_text((copy / change).read_text() + " ")
    assert told(copy) != before


def test_another_tokenizer_is_another_model(copy):
    assert told(copy, "d") != told(copy, "e")


def test_all_parts_of_a_gguf_file_count(tmp_path):
    first, second = (tmp_path / f"m-0000{part}-of-00002.gguf" for part in (1, 2))
    first.write_bytes(b"GGUF" + bytes(5000))
    second.write_bytes(b"GGUF" + bytes(5000))
    before = told(first)
    assert told(second) == before  # any part may be named
    second.write_bytes(b"GGUF" + bytes(4999) + b"\1")
    assert told(first) != before
