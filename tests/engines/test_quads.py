"""Quads of int8 are compiled for processors that have them and no bfloat16, such as Ice Lake."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

from actors.engines.decoder.cpu.quads import HAS_QUADS

ROUNDED = """
import hashlib
import numpy as np
from actors.engines.decoder.cpu.quads import quantize, words_of
x = np.random.default_rng(0).standard_normal((3, 400)).astype(np.float32)
words = np.zeros(3 * words_of(400), np.int32)
quantize(x.ravel(), 3, 400, words)
print(hashlib.sha256(words.tobytes()).hexdigest())
"""
FEATURES = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2,+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd,+avx512vnni"


def rounded(**processor: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ROUNDED],
        env={**os.environ, "NUMBA_DISABLE_CACHING": "1", **processor},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@pytest.mark.skipif(not HAS_QUADS, reason="this processor cannot run what is compiled")
def test_inputs_are_rounded_alike_with_and_without_bfloat16():
    there = {"NUMBA_CPU_NAME": "icelake-server", "NUMBA_CPU_FEATURES": FEATURES}
    assert rounded(**there) == rounded() != ""
