"""Our Triton kernels: what they compute, and that they compile for GPUs that are not here."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="torch's CUDA builds bring Triton, its CPU build does not")

from actors.engines.decoder.gpu.triton_kernels import between, groups
from actors.engines.weights.formats import KINDS
from tests.engines.compiled_kernels import CAPABILITIES, Kernel, of, products, read, whole_numbers


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


@pytest.mark.parametrize("dtype, capability", [("bf16", 80), ("fp16", 86), ("bf16", 90), ("bf16", 120), ("fp32", 90)])
def test_the_kernels_compile_for_gpus(dtype, capability):
    from actors.engines.decoder.gpu.triton_kernels import attention, linear

    def text_of(kernel, pointers, numbers, sizes, stages=3):
        made = Kernel("", kernel, pointers | numbers, sizes, {"num_stages": stages}).compiled(capability)
        assert made.asm["cubin"]
        return made.asm["ptx"]

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
    joined = {"SPLIT": attention.SPLIT, "JOINED": attention.JOINED} | of(True, "SINKS", "ROUNDED")
    pointers |= {"records": "*i32"} | of("i32", "apart", "groups")
    text_of(attention._join, pointers, {"log2_e": "fp32"}, heads | joined | seen)

    few = (False, linear.ROWS[0]), (True, linear.ROWS[-1])
    every = itertools.product((False, True), linear.ROWS)
    for gated, rows in every if (dtype, capability) == ("bf16", 90) else few:
        cut = linear.cut_of(rows, 4096, 4096, 4 if dtype == "fp32" else 2, gated, 163 << 10)
        sizes = {"SPAN": 0, "PLAIN": False, "BIASED": True, "GATED": gated, "EVEN": True}
        sizes |= {"ROWS": cut.rows, "COLUMNS": linear.COLUMNS}
        text = text_of(
            linear._multiply,
            of(own, "x", "weight", "scales", "bias") | of(own if gated else sums, "out"),
            of("i32", "rows", "columns", "depth", "reach"),
            sizes | {"DEPTH": cut.depth},
            cut.stages,
        )
        assert ("mma" in text) == (dtype != "fp32")

    pointers = of(own, "x", "behind", "behind_bias", "then", "then_bias", "out") | of(sums, "parts")
    pointers |= {"records": "*i32"}
    sizes = of(True, "BEHIND", "BEHIND_BIASED", "THEN", "THEN_BIASED", "CENTRED", "ROUNDED")
    sizes |= {"SPLITS": 4, "BLOCK": 4096}
    text_of(between._join, pointers, of("i32", "rows", "size", "apart", "groups") | of("fp32", "scale", "eps"), sizes)
    pointers = (
        of(sums, "parts", "turns", "stretch") | of(own, "norm", "queries", "keys", "values") | of("*i64", "slots")
    )
    sizes = {"HEADS": 32, "KV_HEADS": 8, "WIDTH": 128, "HALF": 64, "SPLITS": 4, "NORMED": 40, "LATE": False}
    sizes |= {"PAIRS": 32, "STRETCHED": True}
    text_of(between._turn, pointers, of("i32", "rows", "columns", "slot_stride") | {"eps": "fp32"}, sizes)


# A kind of blocks for each that the kernels tell apart
GROUPED = [*{str(groups.form_options(kind.form)): kind.name for kind in KINDS.values() if kind.form}.values(), "NVFP4"]


# A kernel takes a second to compile: all are for these, and what asks the most of them for the other capabilities
USUAL = (90, 120)
ELSEWHERE = [("Q6_K", capability) for capability in CAPABILITIES if capability not in USUAL]


@pytest.mark.parametrize("name, capability", [*itertools.product(GROUPED, USUAL), *ELSEWHERE])
def test_a_row_times_blocks_takes_at_most_two_instructions_a_weight_and_leaves_room_for_32_warps(name, capability):
    needs = products(name, 1).needs(capability)
    assert 0 < needs.each <= (2.15 if name == "NVFP4" else 2)  # two sums of a group are scaled, and made of a table
    assert needs.resident >= 32 and not needs.spilled


@pytest.mark.parametrize("span, capability", [(1, 90), (32, 90), *((128, each) for each in USUAL)])
def test_float8_is_widened_in_few_instructions_and_registers(span, capability):
    """Eight a weight take an H100 three quarters of the time of reading it."""
    needs = whole_numbers(16, span, capability).needs(capability)
    assert 0 < needs.each <= 8 and not needs.spilled


# The most rows of each sort of product for all kinds; fewer for a kind with minima, one with a table, one with neither
FEWER = itertools.product(("Q4_K", "IQ4_XS", "Q8_0"), (2, 16))


@pytest.mark.parametrize("name, rows", [*itertools.product(GROUPED, (4, 32)), *FEWER])
def test_a_row_beside_others_takes_fewer_instructions_than_alone(name, rows):
    """Counted for each weight and row, because a row's products are made for it alone: of four rows half of the
    instructions are. What is read and taken apart once for all is what makes them fewer, and tensor cores are."""
    needs = products(name, rows).needs(90)
    assert 0 < needs.each <= (0.35 if rows in groups.TILES else 0.9) * rows * products(name, 1).needs(90).each
    assert needs.resident >= {16: 24, 32: 16}.get(rows, 32)
    assert needs.spilled <= 1  # words that an iteration reads of memory of its own


def test_a_products_reads_are_wide_and_its_sums_those_of_integers():
    kernel = products("Q4_K", 1)
    code = "\n".join(text for _, text in read(kernel.compiled(90).asm["cubin"])[1])
    assert "LDG.E.128" in code and "IDP.4A.S8.S8" in code
    assert any(
        text.startswith("IMMA.16832.S8.S8") for _, text in read(products("Q4_K", 16).compiled(90).asm["cubin"])[1]
    )
    assert not re.search(r"\b(RED|ATOM|ATOMG|I2F)\b", code)
    assert "IMMA.16832.S8.S8" in str(read(products("Q4_K", 16).compiled(90).asm["cubin"]))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_what_stands_around_products_with_blocks_compiles(capability):
    form = groups.form_options(next(kind.form for kind in KINDS.values() if kind.name == "Q6_K"))
    weights = of("*i32", "words", "high", "factors") | {"scales": "*fp32", "chosen": "*i64", "out": "*bf16"}
    numbers = of("i32", "count", "outputs", "depth")
    made = [
        Kernel("numbers", groups._write, weights | numbers, form | {"CHOSEN": True, "MANY": groups.MANY}),
        Kernel(
            "gate",
            between._gate,
            {"parts": "*fp32", "out": "*bf16", "records": "*i32"} | of("i32", "rows", "inner", "apart", "groups"),
            {"SPLITS": 4, "ROUNDED": True, "BLOCK": between.GATED},
        ),
    ]
    rounding = {"x": "*bf16", "out": "*i32"} | of("i32", "rows", "apart", "depth", "groups")
    made.append(Kernel("rounding", groups._round, rounding, {"MANY": groups.MANY}))
    for kernel in [*(made if capability in USUAL else []), products("Q6_K", 16)]:
        assert kernel.needs(capability).resident


@pytest.mark.parametrize("capability", USUAL)
def test_experts_and_recurrent_states_compile_for_gpus(capability):
    import triton.language as tl

    from actors.engines.decoder.gpu.triton_kernels import experts, states

    numbers = of("i32", "shared", "apart", "columns", "depth", "groups")
    pointers = of("*i64", "weights", "biases", "chosen") | {"x": "*bf16", "out": "*fp32"}
    options = {"KIND": tl.bfloat16, "BIASED": True, "COLUMNS": experts.COLUMNS}
    assert (
        Kernel("", experts._multiply, pointers | numbers, options | {"DEPTH": experts.DEPTH}).needs(capability).resident
    )
    form = groups.product_options(next(kind.form for kind in KINDS.values() if kind.name == "MXFP4"), 1)
    pointers |= of("*i64", "all_words", "highs", "all_factors", "all_scales") | of("*i32", "x")
    del options["COLUMNS"]
    most = {"maxnreg": experts.REGISTERS}
    made = Kernel("", experts._multiply_groups, pointers | numbers, form | options, most)
    assert made.needs(capability).resident >= 32 and not made.needs(capability).spilled
    assert "ld.global.v4" in made.compiled(capability).asm["ptx"]
    own, told = of("*fp32", "rows", "pool", "weights", "bias", "out"), of("*i32", "taps", "places", "texts", "past")
    sizes = {"CHANNELS": 8192, "BLOCK": states.CHANNELS, "PAST": 3}
    made = [
        Kernel("", states._convolve, own | told | {"first": "i32"}, sizes | of(True, "BIASED", "BENT")),
        Kernel("", states._remember, own | told, sizes | {"FIELDS": 7, "FILLED": 4}),
    ]
    pointers = of("*fp32", "queries", "own", "records", "logarithms", "states", "room", "out")
    pointers |= of("*i32", "texts", "sources", "kept", "pending", "places")
    sizes = {"HEADS": 32, "GROUPS": 16, "TILED": False, "KEYS": 128, "DEPTH": 128, "VALUES": 128, "TILE": states.TILE}
    sizes |= {"FIELDS": 7, "GO_ON": -1, "TEXT": -2, "WIDTH": 6208}
    made += [Kernel("", states._walk, pointers, sizes | {"DELTA": True, "EACH": each}) for each in (False, True)]
    made.append(Kernel("", states._record, pointers, {"WIDTH": 6208, "BLOCK": states.CHANNELS}))
    assert all(kernel.needs(capability).resident and not kernel.needs(capability).spilled for kernel in made)
