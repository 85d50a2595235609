"""Our Triton kernels: what they compute, and that they compile for GPUs that are not here."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="torch's CUDA builds bring Triton, its CPU build does not")

from actors.engines.decoder.gpu.groups import Float8Matrix
from actors.engines.decoder.gpu.triton_kernels import between, float8, groups
from actors.engines.weights.formats import KINDS
from tests.engines.compiled_kernels import (
    CAPABILITIES,
    GROUPED,
    SPANS,
    Kernel,
    in_float8,
    noisy_tokens,
    of,
    of_prompts,
    products,
    read,
)


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
        sizes = {"BIASED": True, "GATED": gated, "EVEN": True}
        sizes |= {"ROWS": cut.rows, "COLUMNS": linear.COLUMNS}
        text = text_of(
            linear._multiply,
            of(own, "x", "weight", "bias") | of(own if gated else sums, "out"),
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


# A kernel takes a second to compile: each is compiled for two capabilities, in turn, and for all six what asks the most
USUAL, IN_TURN = (90, 120), ((80, 90), (86, 100), (89, 120))
EACH = {(name, each) for at, name in enumerate(GROUPED) for each in IN_TURN[at % 3]}


@pytest.mark.parametrize("name, capability", sorted(EACH | {("Q6_K", each) for each in CAPABILITIES}))
def test_a_row_times_blocks_takes_at_most_two_instructions_a_weight_and_leaves_room_for_32_warps(name, capability):
    needs = products(name, 1).needs(capability)
    assert 0 < needs.each <= 2 and needs.resident >= 32 and not needs.spilled


@pytest.mark.parametrize("span, capability", [(0, 80), (0, 90), (1, 90), *((4, each) for each in CAPABILITIES)])
def test_eight_rows_times_float8_take_two_instructions_a_weight_together_and_leave_room_for_32_warps(span, capability):
    """One row takes as many: tensor cores multiply eight."""
    needs, kernel = in_float8(8, span).needs(capability), in_float8(8, span)
    assert 0 < needs.each <= 2 and needs.resident >= 32 and not needs.spilled
    code = "\n".join(text for _, text in read(kernel.compiled(capability).asm["cubin"])[1])
    assert "LDG.E.128" in code and "HMMA.16816.F32.BF16" in code and not re.search(r"LDGSTS|SHFL", code)


@pytest.mark.parametrize("rows, kind", [(16, torch.bfloat16), (8, torch.float16), (8, torch.float32)])
def test_more_rows_times_float8_and_those_of_other_types_take_few_more_instructions(rows, kind):
    needs = in_float8(rows, 4, kind).needs(90)
    assert 0 < needs.each <= 4 and needs.resident >= 16 and not needs.spilled


# The most rows of each sort of product for all kinds; fewer for a kind with minima, one with a table, one with neither
FEWER = [*itertools.product(("Q4_K", "IQ4_XS", "Q8_0"), (2,)), ("Q6_K", 16)]


@pytest.mark.parametrize("name, rows", [*itertools.product(GROUPED, (4, 32)), *FEWER])
def test_a_row_beside_others_takes_fewer_instructions_than_alone(name, rows):
    """Counted for each weight and row, because a row's products are made for it alone: of four rows half of the
    instructions are. What is read and taken apart once for all is what makes them fewer, and tensor cores are."""
    needs = products(name, rows).needs(90)
    assert 0 < needs.each <= (0.55 if rows in groups.TILES else 0.9) * rows * products(name, 1).needs(90).each
    assert needs.resident >= (12 if rows in groups.TILES else 32) and not needs.fault


SMALLER = [("IQ4_XS", 120), ("NVFP4", 80), ("Q4_0", 89), ("Q4_K", 100), ("Q8_0", 86)]


@pytest.mark.parametrize(
    "rows, name, capability", [(8, *each) for each in SMALLER] + [(16, "NVFP4", 86), (16, "Q4_K", 90)]
)
def test_rows_times_codes_of_4_and_8_bits_reach_tensor_cores_without_shared_memory(rows, name, capability):
    """Most of six instructions for sixteen rows, and of four for eight, scale the sums of each row by themselves."""
    needs, kernel = products(name, rows).needs(capability), products(name, rows)
    assert 0 < needs.each <= {8: 4.3, 16: 5.5}[rows] and needs.resident >= {8: 24, 16: 16}[rows] and not needs.spilled
    code = [text for _, text in read(kernel.compiled(capability).asm["cubin"])[1]]
    last = max(at for at, text in enumerate(code) if text.startswith("HMMA.16816.F32"))
    assert not re.search(r"\b(LDGSTS|LDS|STS|SHFL|I2F)\b", "\n".join(code[: last + 1]))


def test_a_tokens_noise_is_added_to_what_was_rounded_before_and_by_exact_logarithms():
    """As torch does it: a sum of a product would be rounded once."""
    text = noisy_tokens().compiled(90).asm["ptx"]
    assert "mul.rn.f32" in text and "lg2.approx" not in text and noisy_tokens().needs(90).resident >= 32


# The least share of tensor cores' rate, and instructions a weight for all of a tile's 128 rows, tensor cores' included:
# there are as many for one of ``mma.sync``, which a warp has for itself. Of 10.0 tensor cores are the quickest.
SHARES = {"blocks": (0.95, 9.0, 0.7), "float8": (0.95, 11.0, 0.5)}


@pytest.mark.parametrize(
    "name, capability",
    sorted({("Q4_K", each) for each in CAPABILITIES} | {(name, 90) for name in (*GROUPED, *SPANS)}
           | {("Q6_K", 100), ("IQ4_XS", 100), ("float8 in blocks", 100), ("float8 in blocks", 120)}),
)  # fmt: skip
def test_a_prompts_product_leaves_tensor_cores_most_of_their_rate(name, capability):
    needs = of_prompts(name, capability).needs(capability)
    share, each, on_ten = SHARES["float8" if name in SPANS else "blocks"]
    assert needs.tensor and needs.share >= (on_ten if capability == 100 else share) and 0 < needs.each <= each
    assert not needs.spilled and needs.resident >= 8 and needs.shared <= 72 << 10


@pytest.mark.parametrize("rows, kind", [(64, torch.bfloat16), (128, torch.float16), (128, torch.float32)])
def test_a_prompts_other_tiles_compile_without_a_spilled_word(rows, kind):
    needs = of_prompts("Q4_K", 86, rows, kind).needs(86)
    assert bool(needs.tensor) == (kind != torch.float32) and not needs.spilled and needs.resident >= 8


def test_a_products_reads_are_wide_and_its_sums_those_of_integers():
    kernel = products("Q4_K", 1)
    code = "\n".join(text for _, text in read(kernel.compiled(90).asm["cubin"])[1])
    assert "LDG.E.128" in code and "IDP.4A.S8.S8" in code
    assert not re.search(r"\b(RED|ATOM|ATOMG|I2F)\b", code)
    assert "IMMA.16832.S8.S8" in str(read(products("Q6_K", 16).compiled(90).asm["cubin"]))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_what_stands_around_products_with_blocks_compiles(capability):
    form = groups.form_options(next(kind.form for kind in KINDS.values() if kind.name == "Q6_K"))
    weights = of("*i32", "words", "high", "factors") | {"scales": "*fp32", "chosen": "*i64", "out": "*bf16"}
    numbers = of("i32", "count", "outputs", "depth")
    made = [
        Kernel("numbers", groups._write, weights | numbers, form | {"MANY": groups.MANY}),
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
    made = Kernel("", experts._multiply, pointers | numbers, options | {"DEPTH": experts.DEPTH})
    assert made.needs(capability).resident >= 32 and not made.needs(capability).spilled
    assert "ld.global.v4" in made.compiled(capability).asm["ptx"]
    form = groups.product_options(next(kind.form for kind in KINDS.values() if kind.name == "MXFP4"), 1)
    pointers |= of("*i64", "all_words", "highs", "all_factors", "all_scales") | of("*i32", "x")
    del options["COLUMNS"]
    most = {"maxnreg": experts.REGISTERS}
    made = Kernel("", experts._multiply_groups, pointers | numbers, form | options, most)
    assert made.needs(capability).resident >= 32 and not made.needs(capability).spilled
    assert "ld.global.v4" in made.compiled(capability).asm["ptx"]
    sizes = float8.product_options(Float8Matrix(torch.empty(0), span=1), torch.empty(1, 4096, dtype=torch.bfloat16), 8)
    kinds = pointers | {"x": "*bf16"} | of("*i64", "all_words", "all_scales") | numbers | {"blocks": "i32"}
    kinds = {name: kinds[name] for name in experts._multiply_float8.arg_names if name in kinds}
    sizes |= {"KIND": tl.bfloat16, "BIASED": True}
    needs = Kernel("", experts._multiply_float8, kinds, sizes, {"num_stages": 1}, 64).needs(capability)
    assert 0 < needs.each <= 2 and needs.resident >= 32 and not needs.spilled
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
