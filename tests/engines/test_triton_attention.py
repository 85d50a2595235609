"""Our Triton kernels: what they compute, and that they compile for GPUs that are not here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="torch's CUDA builds bring Triton, its CPU build does not")


def test_what_the_kernels_compute_in_tritons_interpreter():
    """It is chosen by the environment before Triton is imported, so it takes a process of its own."""
    file = Path(__file__).with_name("triton_interpreted.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", file],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile_for_gpus(dtype, capability):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from actors.engines.backends.llama import triton_attention

    def compiled(kernel, pointers, numbers, sizes):
        signature = {**pointers, **numbers, **dict.fromkeys(sizes, "constexpr")}
        source = ASTSource(kernel, signature=signature, constexprs=sizes)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm

    text = dict.fromkeys(("tiles", "bases", "prefixes", "lengths", "tails"), "*i32")
    parts = dict.fromkeys(("seen", "tops", "sums"), "*fp32")
    sizes = {"HEADS": 32, "WIDTH": 128, "DEPTH": 128, "SPLIT": triton_attention.SPLIT}
    tiled = {**sizes, "GROUP": 4, "TAIL": 16, "TILE": triton_attention.TILE, "BLOCK": triton_attention.BLOCK}
    pointers = {**dict.fromkeys(("query", "keys", "values"), f"*{dtype}"), **text, **parts}
    found = compiled(
        triton_attention._attend,
        pointers,
        {"rows": "i32", "row_stride": "i32", "head_stride": "i32", "scale": "fp32"},
        tiled,
    )
    assert found["cubin"] and ("mma.sync" in found["ptx"]) == (dtype != "fp32")  # tensor cores round float32
    joined = compiled(triton_attention._join, {**parts, "lengths": "*i32", "out": f"*{dtype}"}, {"rows": "i32"}, sizes)
    assert joined["cubin"]
