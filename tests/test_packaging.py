"""What people get: the wheel's contents, its metadata, and a package that is imported in no time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import duoactor
from duoactor.cli import ENGINE

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
    assert "https" in text and set(re.findall(r"\]\((\w+)", text)) <= {"https"}


def test_every_public_name_is_there():
    assert [name for name in duoactor.__all__ if getattr(duoactor, name, None) is None] == []
    assert set(duoactor.__all__) <= set(dir(duoactor))
    assert not hasattr(duoactor, "Nonsense")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("duoactor sta", "plain,status"),
        ("duoactor chat ./mod", "file,./mod"),
        ("duoactor up --config d", "file,d"),
        ("duoactor up ./mod --draft ./dra", "file,./dra"),
        ("duoactor replay requests.j", "file,requests.j"),
        ("duoactor datastore build store man", "file,man"),
        ("duoactor generate --method pld-", "plain,pld-earliest"),
    ],
)
def test_a_shell_completes_commands_choices_and_files(typed: str, completed: str):
    last = len(typed.split()) - 1
    script = subprocess.run(
        [sys.executable, "-m", "duoactor"],
        env={**os.environ, "_DUOACTOR_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(last)},
        capture_output=True,
        text=True,
    )
    assert script.stdout.split() == [completed]


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from duoactor.cli import main
sys.exit(main({arguments!r}))
"""


def without_engine(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where the packages of the extra ``engine``, and what needs them, are not installed."""
    names = (*ENGINE, "tokenizers", "numba", "llguidance")
    program = WITHOUT.format(names=names, arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_extra_engine_is_what_a_missing_package_is_told_by():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [re.match(r"[\w-]+", one) for one in project["optional-dependencies"]["engine"]]
    assert [one[0] for one in named if one] == list(ENGINE)
    assert not any(one.startswith(ENGINE) for one in project["dependencies"])


@pytest.mark.parametrize("command", ["up", "run", "serve", "generate", "chat", "status", "demo", "doctor", "keys"])
def test_every_help_is_shown_without_the_engine(command: str):
    assert without_engine(command, "--help").returncode == 0


@pytest.mark.parametrize(
    "arguments", [("up", "bundled", "--http", "none"), ("up", "--http", "none"), ("verifier",), ("drafter",), ("list",)]
)
def test_what_needs_the_engine_says_what_adds_it(arguments: tuple[str, ...]):
    done = without_engine(*arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(r"duoactor: models need \w+, which is not installed: pip install .*\[all\]'", done.stderr)


def test_client_and_gateway_need_no_engine():
    done = without_engine("serve", "--connect", "ipc:///nowhere/verifier.ipc", "--http", "127.0.0.1:bad")
    assert "is no HTTP address" in done.stderr
    asked = without_engine("generate", "--connect", "ipc:///nowhere/verifier.ipc", "Hello")
    assert "no verifier answers at ipc:///nowhere/verifier.ipc" in asked.stderr
