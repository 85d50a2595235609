"""Rounding inputs to quads of int8 gives the same bits on processors of every kind."""

import hashlib
import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

from actors.engines.backends.compiled.quads import HAS_QUADS

ROUNDED = """
import hashlib
import numpy as np
from actors.engines.backends.compiled.quads import quantize, words_of
x = np.random.default_rng(0).standard_normal((3, 400)).astype(np.float32)
words = np.zeros(3 * words_of(400), np.int32)
quantize(x.ravel(), 3, 400, words)
print(hashlib.sha256(words.tobytes()).hexdigest())
"""
VECTORS = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2"
WIDE = f"{VECTORS},+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd"


def rounded(**processor: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ROUNDED],
        env={**os.environ, "NUMBA_DISABLE_CACHING": "1", **processor},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout.strip()


@pytest.mark.skipif(not HAS_QUADS, reason="this processor does not multiply quads of int8")
@pytest.mark.parametrize(
    ("name", "features"),
    [("haswell", VECTORS), ("skylake-avx512", WIDE), ("icelake-server", f"{WIDE},+avx512vnni")],
    ids=["without AVX-512", "without VNNI", "with VNNI and without BF16"],
)
def test_they_are_rounded_alike(name, features):
    found = rounded(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features)
    assert len(found) == hashlib.sha256().digest_size * 2
    assert found == rounded()
