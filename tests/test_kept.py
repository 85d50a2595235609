"""What a start has measured is there at the next, as long as all is as it was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from actors import kept as module
from actors.kept import forget, kept, kept_of_files
from actors.models import ModelInfo

MODEL = ModelInfo("m", 500, 2048, frozenset(), "digest", 1000)


@dataclass(frozen=True)
class Found:
    rows: tuple[int, ...]


class Measuring:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Found:
        self.times += 1
        return Found((1, self.times))


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path))
    return tmp_path / "measured"


def test_the_second_start_measures_nothing(directory: Path):
    measure = Measuring()
    assert [kept(Found, MODEL, measure, threads=2) for _ in range(3)] == [Found((1, 1))] * 3


def test_what_is_forgotten_is_measured_at_the_next_start(directory: Path):
    measure = Measuring()
    kept(Found, MODEL, measure, threads=2)
    forget(Found, MODEL, threads=1)
    assert kept(Found, MODEL, measure, threads=2) == Found((1, 1))
    forget(Found, MODEL, threads=2)
    forget(Found, MODEL, threads=2)
    assert kept(Found, MODEL, measure, threads=2) == Found((1, 2))


@pytest.mark.parametrize(
    "change", [{"dtype": "bfloat16"}, {"parameters": 1001}, {"model_id": "n"}, {"device": "cuda:0"}]
)
def test_another_model_is_measured(directory: Path, change):
    measure = Measuring()
    kept(Found, MODEL, measure)
    assert kept(Found, replace(MODEL, **change), measure) == Found((1, 2))


def test_a_context_that_follows_the_memory_that_is_free_is_not_measured_again(directory: Path):
    """A target's texts are as long as its pool has room for, which differs at each start."""
    measure = Measuring()
    found = [kept(Found, replace(MODEL, max_context=longest), measure) for longest in (2048, 71_617, 70_529, 2048)]
    assert found == [Found((1, 1)), Found((1, 2)), Found((1, 2)), Found((1, 1))]


def test_another_number_of_threads_processor_or_code_is_measured(directory: Path, monkeypatch: pytest.MonkeyPatch):
    measure = Measuring()
    kept(Found, MODEL, measure, threads=1)
    kept(Found, MODEL, measure, threads=2)
    monkeypatch.setattr(module, "_processor", lambda: "another")
    kept(Found, MODEL, measure, threads=2)
    monkeypatch.setattr(module, "_versions", lambda: ("torch 99",))
    assert kept(Found, MODEL, measure, threads=2) == Found((1, 4))


def test_what_was_found_of_files_holds_until_one_of_them_changes(directory: Path, tmp_path: Path):
    files, measure = [tmp_path / "one", tmp_path / "two"], Measuring()
    for file in files:
        file.write_text("as it was")
    assert kept_of_files(Found, files, measure) == kept_of_files(Found, files[::-1], measure) == Found((1, 1))
    assert kept_of_files(Found, files[:1], measure) == Found((1, 2))
    files[1].write_text("another")
    assert kept_of_files(Found, files, measure) == Found((1, 3))


@pytest.mark.parametrize("content", [b"", b"{", b'{"rows": "x"}', b"\xff"])
def test_a_file_that_cannot_be_read_is_measured_again(directory: Path, content: bytes):
    measure = Measuring()
    kept(Found, MODEL, measure)
    (file,) = directory.iterdir()
    file.write_bytes(content)
    assert kept(Found, MODEL, measure) == Found((1, 2))


def test_without_a_place_to_write_it_is_measured_each_time(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DUOACTOR_CACHE", "/dev/null/nowhere")
    measure = Measuring()
    assert [kept(Found, MODEL, measure) for _ in range(2)] == [Found((1, 1)), Found((1, 2))]


def test_old_files_are_removed(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST", 3)
    for threads in range(6):
        kept(Found, MODEL, Measuring(), threads=threads)
    assert len(list(directory.iterdir())) == 3


def test_a_full_disk_leaves_no_half_written_file(directory: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*names: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert kept(Found, MODEL, Measuring(), threads=2) == Found((1, 1))
    assert directory.exists() and not [*directory.iterdir()]
