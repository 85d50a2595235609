"""Which names mean GGUF files, and which file of a hub's repository."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
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


def test_all_parts_are_downloaded_and_the_first_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(repo: str, filename: str) -> str:
        asked.append(filename)
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, repo: FILES)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert find_gguf("a/b:Q8_0") == tmp_path / FILES[1]
    assert asked == FILES[1:3]


def test_without_a_network_the_cache_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self: object, repo: str) -> list[str]:
        raise OSError("no network")

    (tmp_path / "m-Q4_0.gguf").write_bytes(b"")
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo, local_files_only: str(tmp_path))
    assert find_gguf("a/b:Q4_0") == tmp_path / "m-Q4_0.gguf"


def test_an_unknown_repository_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(self: object, repo: str) -> list[str]:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", unreachable)
    with pytest.raises(ModelError, match="nobody/nothing-of-this-name cannot be reached and is not in the cache"):
        find_gguf("nobody/nothing-of-this-name:Q4_0")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ModelError, match=r"GGUF file /none/model\.gguf does not exist"):
        find_gguf("/none/model.gguf")
