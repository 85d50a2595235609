"""What people get: the wheel's contents, its metadata, and a package that is imported in no time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import duoactor

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy: setuptools leaves its build directory where it works."""
    directory = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "actors", "duoactor", "protocols"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, directory / name)
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(directory / done.stdout.splitlines()[-1])


def test_the_wheel_holds_every_module_and_the_files_they_read(wheel: zipfile.ZipFile):
    tracked = subprocess.run(
        ["git", "ls-files", "actors", "duoactor", "protocols"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    here = [name for name in tracked if (ROOT / name).exists()] if tracked else []
    typed = [f"{package}/py.typed" for package in ("actors", "duoactor", "protocols")]
    left_out = {*here, *typed} - set(wheel.namelist())
    assert left_out == set()


def test_the_wheel_with_the_bundled_pair_is_smaller_than_60_mb(wheel: zipfile.ZipFile):
    assert wheel.filename is not None
    assert Path(wheel.filename).stat().st_size < 60_000_000


def test_the_metadata_describe_the_project(wheel: zipfile.ZipFile):
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = HeaderParser().parsestr(wheel.read(name).decode())
    assert metadata.get_all("Project-URL") and metadata["Keywords"]
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_index_page_has_no_link_into_the_repository(wheel: zipfile.ZipFile):
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = HeaderParser().parsestr(wheel.read(name).decode())
    text = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "\n## Three commands\n" in text
    assert set(re.findall(r"\]\((\w+)", text)) == {"https"}


def test_every_public_name_is_there():
    assert [name for name in duoactor.__all__ if getattr(duoactor, name, None) is None] == []
    assert set(duoactor.__all__) <= set(dir(duoactor))
    assert not hasattr(duoactor, "Nonsense")


def test_a_shell_completes_commands():
    script = subprocess.run(
        [sys.executable, "-m", "duoactor"],
        env={**os.environ, "_DUOACTOR_COMPLETE": "bash_complete", "COMP_WORDS": "duoactor sta", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
    )
    assert re.findall(r"\w+$", script.stdout, flags=re.MULTILINE) == ["status"]
