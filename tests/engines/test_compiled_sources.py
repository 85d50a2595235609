"""numba's code on disk goes when any file that it was compiled from changes."""

import os
import subprocess
import sys

import pytest

from actors.engines.decoder.cpu.compiler import _forget_others, compiled_kernels

DIGEST = """
import importlib, sys
from pathlib import Path
from actors.engines.decoder.cpu import linking

before = linking.SOURCES
read = Path.read_bytes
Path.read_bytes = lambda path: read(path) + (b"# edited" if path.name == sys.argv[1] else b"")
print(before == importlib.reload(linking).SOURCES)
"""


@pytest.mark.parametrize(("name", "same"), [("tile.py", "False"), ("formats.py", "False"), ("engine.py", "True")])
def test_an_edit_of_any_file_that_is_compiled_gives_machine_code_other_names_on_disk(name, same):
    done = subprocess.run([sys.executable, "-c", DIGEST, name], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == same


def test_machine_code_of_other_sources_is_deleted_and_this_ones_stays(tmp_path):
    from actors.engines.decoder.cpu.linking import SOURCES

    for name in (f"team._run_{SOURCES}-1.py311.nbi", "team._run_0123456789abcdef-1.py311.1.nbc", "cpython-311.pyc"):
        (tmp_path / name).touch()
    _forget_others(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"team._run_{SOURCES}-1.py311.nbi", "cpython-311.pyc"}


RANKED = """
import sys
import numpy as np
import numba.core.compiler

if sys.argv[1] == "public":
    sys.modules["numba._dynfunc"] = None
    del numba._dynfunc
from actors.engines.decoder.cpu import linking
from actors.engines.decoder.cpu.choice import CHOICE, rank_rows

assert ("pipeline_class" in linking._linked) == (sys.argv[1] == "private")
rows, logits = np.zeros(2, CHOICE), np.random.default_rng(0).normal(size=(2, 300)).astype(np.float32)
rows["colder"], rows["top_p"], rows["min_p"], rows["seed"], rows["position"] = 1.25, (1.0, 0.7), -np.inf, 7, (3, 4)
ids, chances = np.empty((2, 8), np.int64), np.empty((2, 8), np.float32)
rank_rows(rows, logits, np.empty(0, np.int32), ids, chances)
print(ids.tobytes().hex(), chances.tobytes().hex())
"""


def test_a_numba_with_other_private_parts_compiles_the_same_bits(tmp_path):
    """Each function by itself, through numba's public interface: that takes longer."""
    found = set()
    for part in ("private", "public"):
        line = [sys.executable, "-c", RANKED, part]
        found.add(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1 and len(set(found.pop().split())) == 2


KEPT = """
from actors.engines.decoder.cpu.linking import kept

@kept("int64(int64)")
def twice(number):
    return 2 * number
"""


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("size", [0, 50])
def test_damaged_machine_code_on_disk_is_compiled_anew(tmp_path, ending, size):
    """A power cut, or a disk that filled, may leave a file short."""
    (tmp_path / "small.py").write_text(KEPT)
    line = [sys.executable, "-c", "import small; print(small.twice(21))"]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    found = []
    for _ in range(2):
        found.append(subprocess.run(line, env=paths, capture_output=True, text=True, check=True).stdout)
        (file,) = tmp_path.rglob(f"*.{ending}")
        whole = file.read_bytes()
        file.write_bytes(whole[:size])
    assert found == ["42\n"] * 2 and len(whole) > 50


def test_what_a_full_disk_cannot_hold_is_compiled_all_the_same(tmp_path):
    (tmp_path / "small.py").write_text(KEPT)
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY)); "
    line = [sys.executable, "-c", full + "import small; print(small.twice(21))"]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(line, env=paths, capture_output=True, text=True, check=True)
    assert done.stdout == "42\n" and done.stderr.count("compiled layers cannot be kept on disk") == 1


LISTEN = """
from numba.core import event

class Compiled(event.Listener):
    def on_start(self, event): print(event.data["dispatcher"].py_func.__qualname__)
    def on_end(self, event): ...

event.register("numba:compile", Compiled())
from actors.engines.decoder.cpu.compiler import compiled_kernels
assert compiled_kernels() is not None
"""


def test_what_is_on_disk_is_not_compiled_again():
    """One helper was, at each start, which then said that it compiled the layers for the first time."""
    pytest.importorskip("numba")
    assert compiled_kernels() is not None  # now it is there
    done = subprocess.run([sys.executable, "-c", LISTEN], capture_output=True, text=True, check=True)
    assert done.stdout == ""


TOGETHER = """
import collections, os, threading, types
from numba.core import event
from actors.engines.decoder.cpu import compiler

class Compiled(event.Listener):
    def on_start(self, event): names[event.data["dispatcher"].py_func.__name__] += 1
    def on_end(self, event): ...

names, found, together = collections.Counter(), [], threading.Barrier(3)
event.register("numba:compile", Compiled())
compiler.HALVES = (("first", "second"), ("third",))

def ask():
    together.wait()
    found.append(compiler.compiled_kernels())

threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert [module.__name__ for module in found] == ["first"] * 3, found
print(dict(names))
"""

SHORT = """
import os, types
from numba import njit

@njit("int64(int64)", cache=True)
def {0}_one(x): return x + 1

@njit("int64(int64)", cache=True)
def {0}_two(x): return x + 2

run_layers = types.SimpleNamespace(stats=types.SimpleNamespace(cache_path=os.environ["NUMBA_CACHE_DIR"]))
"""


def test_threads_that_ask_at_the_same_time_all_get_the_kernels_that_processes_compiled_which_have_ended(
    tmp_path, monkeypatch
):
    """Where nothing is compiled yet; a thread that got none would compute slowly until it ends. What compiles keeps
    hundreds of MB of LLVM's until it ends: here only the function is compiled that found nothing on disk."""
    pytest.importorskip("numba")
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.py").write_text(SHORT.format(name))
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "machine-code"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", TOGETHER], check=True, timeout=100, capture_output=True, text=True)
    assert done.stdout == "{'first_one': 1}\n"
