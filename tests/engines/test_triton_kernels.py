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


def of(kind, *names):
    return dict.fromkeys(names, kind)


def compiled(kernel, capability, pointers, numbers, sizes, stages=3):
    """For a GPU. ``pointers`` may have more names than the kernel."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {**pointers, **numbers, **dict.fromkeys(sizes, "constexpr")}
    arguments = {name: signature[name] for name in kernel.arg_names}
    source = ASTSource(kernel, signature=arguments, constexprs=sizes)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_stages": stages})
    assert found.asm["cubin"]
    return found


@pytest.mark.parametrize(
    "dtype, capability", [("bf16", 80), ("bf16", 86), ("bf16", 90), ("bf16", 120), ("fp16", 90), ("fp32", 90)]
)
def test_the_kernels_compile_for_gpus(dtype, capability):
    from actors.engines.decoder.gpu.triton_kernels import attention, between, linear

    def text_of(*given):
        return compiled(given[0], capability, *given[1:]).asm["ptx"]

    own, sums = f"*{dtype}", "*fp32"
    heads = {"HEADS": 32, "WIDTH": 128, "DEPTH": 128}
    pointers = of(own, "query", "keys", "values") | of(
        "*i32", "count", "items", "starts", "bases", "prefixes", "lengths", "tails"
    )
    sizes = {"GROUP": 4, "TAIL": 64, "TILE": attention.TILE, "SPLIT": attention.SPLIT, "CAPPED": True}
    seen = {"WINDOW": 4096, "CHUNKED": False}
    text = text_of(
        attention._attend,
        pointers | of(sums, "seen", "tops", "sums"),
        {"head_stride": "i32", "scale": "fp32", "cap": "fp32"},
        heads | sizes | seen,
    )
    assert ("mma.sync" in text) == (dtype != "fp32")  # tensor cores round float32
    pointers = of(sums, "seen", "tops", "sums") | of("*i32", "starts", "lengths") | of(own, "sinks", "out")
    joined = {"SPLIT": attention.SPLIT, "JOINED": attention.JOINED, "SINKS": True}
    text_of(attention._join, pointers, {"log2_e": "fp32"}, heads | joined | seen)

    every = linear.ROWS if (dtype, capability) == ("bf16", 90) else (linear.ROWS[0], linear.ROWS[-1])
    for gated, rows in itertools.product((False, True), every):
        cut = linear.cut_of(rows, 4096, 4096, 4 if dtype == "fp32" else 2, gated, 163 << 10)
        sizes = {"BIASED": True, "GATED": gated, "EVEN": True, "ROWS": cut.rows, "COLUMNS": linear.COLUMNS}
        text = text_of(
            linear._multiply,
            of(own, "x", "weight", "bias") | of(own if gated else sums, "out"),
            of("i32", "rows", "columns", "depth", "reach"),
            sizes | {"DEPTH": cut.depth},
            cut.stages,
        )
        assert ("mma" in text) == (dtype != "fp32")

    pointers = of(own, "x", "behind", "behind_bias", "then", "then_bias", "out") | of(sums, "parts")
    sizes = of(True, "BEHIND", "BEHIND_BIASED", "THEN", "THEN_BIASED", "CENTRED") | {"SPLITS": 4, "BLOCK": 4096}
    text_of(between._join, pointers, of("i32", "rows", "size") | of("fp32", "scale", "eps"), sizes)
    pointers = (
        of(sums, "parts", "turns", "stretch") | of(own, "norm", "queries", "keys", "values") | of("*i64", "slots")
    )
    sizes = {"HEADS": 32, "KV_HEADS": 8, "WIDTH": 128, "HALF": 64, "SPLITS": 4, "NORMED": 40, "LATE": False}
    sizes |= {"PAIRS": 32, "STRETCHED": True}
    text_of(between._turn, pointers, of("i32", "rows", "columns", "slot_stride") | {"eps": "fp32"}, sizes)


@pytest.mark.parametrize(
    "name, capability, gated, rows",
    [("Q4_K", 80, False, 16), ("Q6_K", 86, True, 64), ("Q4_K", 89, True, 128), ("IQ4_XS", 90, True, 16)],
)
def test_products_with_weights_in_groups_compile_for_gpus(name, capability, gated, rows):
    from actors.engines.decoder.gpu.triton_kernels import groups, linear
    from actors.engines.weights.blocks import KINDS

    form = groups.form_options(next(kind.form for kind in KINDS.values() if kind.name == name))
    shared = {80: 163, 86: 99, 89: 99, 90: 227}[capability] << 10
    cut = linear.cut_of(rows, 4096, 4096, 2, gated, shared)
    weights = of("*u8", "low", "low_2") | of("*i32", "high", "high_2", "factors", "factors_2") | of("*fp32", "table")
    sizes = {"BIASED": True, "GATED": gated, "ROWS": cut.rows, "COLUMNS": linear.COLUMNS, "CHUNKS": cut.depth // 64}
    found = compiled(
        groups._multiply,
        capability,
        weights | of("*bf16", "x", "bias", "bias_2") | of("*bf16" if gated else "*fp32", "out"),
        of("i32", "rows", "outputs", "whole", "depth", "reach"),
        form | sizes,
        cut.stages,
    )
    assert "mma" in found.asm["ptx"] and found.metadata.shared <= shared
    compiled(
        groups._write,
        capability,
        weights | of("*bf16", "out") | of("*i64", "chosen"),
        of("i32", "count", "outputs", "depth"),
        form | {"CHOSEN": True, "COLUMNS": linear.COLUMNS},
    )


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_experts_and_recurrent_states_compile_for_gpus(capability):
    import triton.language as tl

    from actors.engines.decoder.gpu.triton_kernels import experts, groups, states
    from actors.engines.weights.blocks import KINDS

    numbers = of("i32", "shared", "columns", "depth")
    pointers = of("*i64", "weights", "biases", "chosen") | {"x": "*bf16", "out": "*fp32"}
    options = {"KIND": tl.bfloat16, "BIASED": True, "COLUMNS": experts.COLUMNS}
    compiled(experts._multiply, capability, pointers, numbers, options | {"DEPTH": experts.DEPTH})
    form = groups.form_options(next(kind.form for kind in KINDS.values() if kind.name == "Q4_K"))
    pointers |= of("*i64", "lows", "highs", "all_factors") | {"table": "*fp32"}
    compiled(experts._multiply_groups, capability, pointers, numbers, options | form)
    names = ("queries", "keys", "values", "decays", "rates", "state", "room", "out", "left")
    sizes = {"HEADS": 32, "GROUPS": 16, "TILED": False, "KEYS": 128, "DEPTH": 128, "VALUES": 128, "TILE": states.TILE}
    for chain in (False, True):
        kinds = of("*fp32", *names) | {"parents": "*i32"}
        options = sizes | {"DELTA": True, "CHAIN": chain}
        compiled(states._walk, capability, kinds, of("i32", "rows", "kept"), options)
