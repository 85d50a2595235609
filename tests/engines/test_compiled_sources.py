"""numba's code on disk goes when any file that it was compiled from changes."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import actors.engines.decoder.cpu as cpu
from actors.engines.decoder.cpu.compiler import compiled_kernels

CACHED = re.compile('"cache": True|cache=True')
NOT_COMPILED = {"body.py", "compiler.py", "engine.py", "laid_out.py", "rings.py", "streams.py", "trunk.py"}
FILES = [path for path in sorted(Path(cpu.__file__).parent.glob("*.py")) if path.name not in NOT_COMPILED]
KEPT = {path.name: path.read_text() for path in FILES if CACHED.search(path.read_text())}
LINE = re.compile(r'^SOURCES = "(\w+)".*$', re.MULTILINE)


def test_every_file_whose_functions_are_kept_on_disk_names_all_sources():
    assert set(KEPT) == {"choice.py", "kernels.py", "packing.py", "pieces.py", "team.py"}
    texts = [LINE.sub("", path.read_text()) for path in FILES]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    found = {name: LINE.findall(text) for name, text in KEPT.items()}
    assert found == {name: [digest] for name in KEPT}, f'write SOURCES = "{digest}" into {", ".join(KEPT)}'


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
import importlib.abc, importlib.machinery, sys, threading, types
from actors.engines.decoder.cpu import compiler

class Short(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "actors.engines.decoder.cpu.kernels" else None

    def exec_module(self, module):
        from numba import njit
        njit("int64(int64)")(lambda x: x + 1)

sys.meta_path.insert(0, Short())
sys.modules[compiler.OTHER_HALF] = types.ModuleType(compiler.OTHER_HALF)
found, together = [], threading.Barrier(3)

def ask():
    together.wait()
    found.append(compiler.compiled_kernels())

threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert None not in found and len(found) == 3, found
"""


def test_threads_that_ask_at_the_same_time_all_get_the_kernels(tmp_path, monkeypatch):
    """Where nothing is compiled yet; one that got none would compute slowly until it ends."""
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path))
    subprocess.run([sys.executable, "-c", TOGETHER], check=True, timeout=100)
