"""Our Triton kernels: what they compute, and that they compile for GPUs that are not here."""

import itertools
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


@pytest.mark.parametrize("dtype, capability", [("bf16", 80), ("bf16", 90), ("fp16", 90), ("fp32", 90)])
def test_the_kernels_compile_for_gpus(dtype, capability):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from actors.engines.decoder.gpu.triton_kernels import attention, between, linear

    def compiled(kernel, pointers, numbers, sizes, stages=3):
        signature = {**pointers, **numbers, **dict.fromkeys(sizes, "constexpr")}
        arguments = {name: signature[name] for name in kernel.arg_names}
        source = ASTSource(kernel, signature=arguments, constexprs=sizes)
        found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_stages": stages})
        assert found.asm["cubin"]
        return found.asm["ptx"]

    def of(kind, *names):
        return dict.fromkeys(names, kind)

    own, sums = f"*{dtype}", "*fp32"
    heads = {"HEADS": 32, "WIDTH": 128, "DEPTH": 128}
    pointers = of(own, "query", "keys", "values") | of(
        "*i32", "count", "items", "starts", "bases", "prefixes", "lengths", "tails"
    )
    sizes = {"GROUP": 4, "TAIL": 64, "TILE": attention.TILE, "SPLIT": attention.SPLIT}
    text = compiled(
        attention._attend,
        pointers | of(sums, "seen", "tops", "sums"),
        {"head_stride": "i32", "scale": "fp32"},
        heads | sizes,
    )
    assert ("mma.sync" in text) == (dtype != "fp32")  # tensor cores round float32
    pointers = of(sums, "seen", "tops", "sums") | of("*i32", "starts", "lengths") | of(own, "out")
    compiled(attention._join, pointers, {}, heads | {"SPLIT": attention.SPLIT, "JOINED": attention.JOINED})

    every = linear.ROWS if (dtype, capability) == ("bf16", 90) else (linear.ROWS[0], linear.ROWS[-1])
    for gated, rows in itertools.product((False, True), every):
        cut = linear.cut_of(rows, 4096, 4096, 4 if dtype == "fp32" else 2, gated, 163 << 10)
        sizes = {"BIASED": True, "GATED": gated, "EVEN": True, "ROWS": cut.rows, "COLUMNS": linear.COLUMNS}
        text = compiled(
            linear._multiply,
            of(own, "x", "weight", "bias") | of(own if gated else sums, "out"),
            of("i32", "rows", "columns", "depth", "reach"),
            sizes | {"DEPTH": cut.depth},
            cut.stages,
        )
        assert ("mma" in text) == (dtype != "fp32")

    pointers = of(own, "x", "weight", "out") | of(sums, "parts")
    sizes = {"SPLITS": 4, "BLOCK": 4096}
    compiled(between._add_norm, pointers, of("i32", "rows", "size") | {"eps": "fp32"}, sizes)
    pointers = of(sums, "parts", "turns") | of(own, "norm", "queries", "keys", "values") | of("*i64", "slots")
    sizes = {"HEADS": 32, "KV_HEADS": 8, "WIDTH": 128, "HALF": 64, "SPLITS": 4, "NORMED": True}
    compiled(between._turn, pointers, of("i32", "rows", "columns", "slot_stride") | {"eps": "fp32"}, sizes)
