"""Products and attention as a processor without AVX-512 computes them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

from actors.engines.decoder.cpu.tile import WIDE

HERE = Path(__file__).parent


@pytest.mark.skipif(WIDE == 1, reason="that is what this processor uses anyway")
def test_products_and_attention_hold_on_a_processor_without_avx_512():
    """In a process that sees fewer registers: numba keeps its code by the processor that it sees."""
    less = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}
    tests = [HERE / "test_pool_attention.py", HERE / "test_panels.py"]
    run = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *tests, "-k", "not transformers"]
    tested = subprocess.run(run, env={**os.environ, **less}, cwd=HERE.parents[1], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "skipped" not in tested.stdout
