"""What is written is whole or not there, and nothing is written where no user has a place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from actors.datastore import build
from actors.files import PART, user_cache, whole_file
from actors.kept import directory
from actors.learner.start import directory_of
from actors.learner.versions import Versions
from actors.settings import LearnerSettings
from duoactor.bench.results import Results, write_document
from protocols.errors import ConfigError
from tests.bench.benchkit import SETTINGS


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for names, and none for what a file holds."""

    def replace(*names: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", replace)


def test_a_file_whose_writing_is_interrupted_is_as_it_was_and_alone(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"before")
    for interruption in (OSError(errno.ENOSPC, "full"), KeyboardInterrupt()):
        with pytest.raises(type(interruption)), whole_file(tmp_path / "file") as file:
            file.write(b"half")
            raise interruption
    assert (tmp_path / "file").read_bytes() == b"before" and [*tmp_path.iterdir()] == [tmp_path / "file"]
    with whole_file(tmp_path / "file") as file:
        file.write(b"after")
    assert (tmp_path / "file").read_bytes() == b"after" and [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_a_full_disk_leaves_nothing_of_a_datastore_a_promotion_or_a_benchmark(full_disk: None, tmp_path: Path):
    with pytest.raises(OSError):
        build(tmp_path / "store", [[1, 2]], 8)
    with pytest.raises(ConfigError, match="cannot be written"):
        Versions(tmp_path / "versions", "draft")
    with pytest.raises(OSError):
        write_document(tmp_path / "results.json", Results(settings=SETTINGS))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_datastore_is_built_over_what_a_killed_build_left(tmp_path: Path):
    build(tmp_path, [[1, 2]], 8)
    (tmp_path / f"tokens.npy.1{PART}").write_bytes(b"half")
    build(tmp_path, [[3]], 8)
    assert np.load(tmp_path / "tokens.npy").tolist() == [3, 8]


def test_a_user_without_a_home_has_no_cache_and_no_directory_is_made_for_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CACHE_HOME", "DUOACTOR_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # as in a container: nobody by that number
    for place in (user_cache(), directory(), directory_of(LearnerSettings(), "model")):
        with pytest.raises(OSError):
            place.mkdir(parents=True)
    assert [*tmp_path.iterdir()] == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "duoactor"
    with pytest.raises(ConfigError, match="no home for ~/x"):
        directory_of(LearnerSettings(directory="~/x"), "model")
