"""Which names mean GGUF files, and which file of a hub's repository."""

from __future__ import annotations

import pytest

from actors.engines.weights.gguf_names import choose, find_gguf, is_gguf
from protocols.errors import ModelError

FILES = [
    "README.md",
    "big/Qwen3-32B-Q8_0-00001-of-00002.gguf",
    "big/Qwen3-32B-Q8_0-00002-of-00002.gguf",
    "Qwen3-32B-Q4_K_M.gguf",
    "Qwen3-32B-Q4_K_S.gguf",
    "mmproj-Q4_K_M.gguf",
]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("model.gguf", True),
        ("/models/model.gguf", True),
        ("bartowski/Qwen3-32B-GGUF:Q4_K_M", True),
        ("Qwen/Qwen3-32B", False),
        ("./directory", False),
        ("bundled", False),
    ],
)
def test_names_of_gguf_files(name: str, known: bool) -> None:
    assert is_gguf(name) is known


def test_the_quantisation_names_the_file() -> None:
    assert choose("a/b", "Q4_K_M", FILES) == "Qwen3-32B-Q4_K_M.gguf"
    assert choose("a/b", "q4_k_s", FILES) == "Qwen3-32B-Q4_K_S.gguf"
    assert choose("a/b", "Q8_0", FILES) == "big/Qwen3-32B-Q8_0-00001-of-00002.gguf"
    with pytest.raises(ModelError, match=r"a/b has no file of Q4_K; it has Qwen3-32B-Q4_K_M\.gguf"):
        choose("a/b", "Q4_K", FILES)
    with pytest.raises(ModelError, match="it has no GGUF file"):
        choose("a/b", "Q4_K", ["README.md"])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ModelError, match=r"GGUF file /none/model\.gguf does not exist"):
        find_gguf("/none/model.gguf")
