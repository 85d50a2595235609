"""Compiled code in a build that ends where an index lies outside its array: the tests of engines pass in it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")
ROOT = Path(__file__).parents[2]
OUTSIDE = """
import os
import numpy as np
from numba import njit
from actors.engines.decoder.cpu.simd import load, splat, store

@njit(error_model="numpy")
def number(array, at):
    return array[at]

@njit(error_model="numpy")
def vector(array, at):
    store(array, at, load(array, at))

numbers = np.zeros(64, np.float32)
number(numbers, 63), vector(numbers, 48)
for outside in ("number(numbers, 64)", "vector(numbers, 49)", "vector(numbers, -1)"):
    child = os.fork()
    if child == 0:
        exec(outside)
        os._exit(0)
    print(outside, os.WIFSIGNALED(os.waitpid(child, 0)[1]), flush=True)
"""
# What reads by slots, experts, ids and branches, in families of each kind
TESTS = (
    "tests/engines/test_values_that_are_no_numbers.py",
    "tests/engines/test_sampler.py",
    "tests/engines/weights/test_grouped.py",
)


def checked(directory: Path) -> dict[str, str]:
    return {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(directory)}


def test_what_lies_outside_an_array_ends_the_process(tmp_path: Path) -> None:
    line = [sys.executable, "-c", OUTSIDE]
    done = subprocess.run(line, cwd=ROOT, env=checked(tmp_path), capture_output=True, text=True, check=True)
    said = re.findall(r"(-?\d+): (\d+) elements from there on are not in an array of 64\n(.*)\n", done.stdout)
    assert [(int(at), int(count), ends) for at, count, ends in said] == [
        (64, 1, "number(numbers, 64) True"),
        (49, 16, "vector(numbers, 49) True"),
        (-1, 16, "vector(numbers, -1) True"),
    ]


def test_the_tests_of_engines_pass_where_bounds_are_checked(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(line, cwd=ROOT, env=checked(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:]
