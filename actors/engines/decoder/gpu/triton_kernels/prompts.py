"""Linear layers of a prompt's rows for a GPU: codes become numbers once for a whole tile of rows, for tensor cores.

Weights lie as rounds read them. Rows are as they come, and a weight's number is rounded once, to their type. While
tensor cores multiply, the next numbers are made. A row's sums are added in an order that the matrix and the number of
rows fix, so a prompt has bits of its own: no round computes its rows again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.decoder.gpu.groups import LEFT, RIGHT, TOP, Float8Matrix, GroupedMatrix
from actors.engines.decoder.gpu.triton_kernels.codes import scales_of, unpacked
from actors.engines.decoder.gpu.triton_kernels.gpu import Gpu
from actors.engines.decoder.gpu.triton_kernels.groups import form_options
from actors.engines.weights.formats import GROUP

ROWS, COLUMNS = (64, 128), 128  # rows and outputs of a program
# By the bytes of a row's number: groups of a step, and steps with rows in flight. They take 48 kB of shared memory, and
# for float32, which no tensor core multiplies, as many.
STEPS = {2: (2, 3), 4: (1, 3)}
PROGRAMS, SPLITS = 256, 4  # a matrix of fewer programs is split: two find room on each of 132 multiprocessors
LEAST = 16  # groups of a split: what begins and ends a program takes as long as some steps
# Bytes of a word, each where a float32's fraction counts ones: 2 ** 15 and a byte, and 2 ** 7 and one below 128
BYTES = ["{ " + " ".join(f"prmt.b32 ${at}, $4, $5, 0x{where(at)};" for at in range(4)) + " }" for where in (
    lambda at: f"74{at}4", lambda at: f"7{at}44",
)]  # fmt: skip
_WIDE, _NARROW = (tl.constexpr(each) for each in BYTES)
_TOP, _LEFT, _RIGHT = tl.constexpr(TOP), tl.constexpr(LEFT), tl.constexpr(RIGHT)


@triton.jit
def _four(word, scale, least, SIGNED: tl.constexpr):
    """What the bytes of words stand for."""
    if SIGNED:
        word = word ^ -0x7F7F7F80
    one, two, three, four = tl.inline_asm_elementwise(
        _WIDE if SIGNED else _NARROW, "=r,=r,=r,=r,r,r", [word, word * 0 + (0x47000000 if SIGNED else 0x43000000)],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip
    return tl.fma(one, scale, least), tl.fma(two, scale, least), tl.fma(three, scale, least), tl.fma(four, scale, least)


@triton.jit
def _of_words(numbers, AT: tl.constexpr):
    """The numbers that lie at one place of eight words, by the word. What is joined last lies side by side."""
    even = tl.join(tl.join(numbers[0][AT], numbers[4][AT]), tl.join(numbers[2][AT], numbers[6][AT]))
    odd = tl.join(tl.join(numbers[1][AT], numbers[5][AT]), tl.join(numbers[3][AT], numbers[7][AT]))
    return tl.join(even, odd)


@triton.jit
def _of_groups(
    words, high, factors, own, first, outputs,
    BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    """Numbers ``(COLUMNS, 32 GROUPS)`` of outputs ``own``, from group ``first`` on, times 2 ** ``UP``."""
    planes: tl.constexpr = 2 if BITS == 8 else 1
    bits: tl.constexpr = 0 if BITS == 8 else BITS - 4
    own = own[:, None]
    group = first + tl.arange(0, GROUPS)[None, :]
    at = tl.expand_dims(group * (planes * outputs) + own, 2) * 4 + tl.arange(0, 4)[None, None, :]
    coded, _ = unpacked(words + at, high + (group * (bits * outputs) + own), own >> 31, outputs, BITS, UP, TABLE, True)
    scale, second = scales_of(factors + group * outputs + own, MINIMA or HALVES)
    above: tl.constexpr = -128.0 if MINIMA else -(32768.0 + 128.0)
    other = second if HALVES else scale
    least = tl.fma(scale, above, second if MINIMA else scale * 0.0)
    beside = other * above if HALVES else least
    numbers = ()
    for word in tl.static_range(8):
        if word < 4:
            numbers += (_four(coded[word], scale, least, not MINIMA),)  # type: ignore[assignment]
        else:
            numbers += (_four(coded[word], other, beside, not MINIMA),)  # type: ignore[assignment]
    even, odd = (
        tl.join(_of_words(numbers, 0), _of_words(numbers, 2)),
        tl.join(_of_words(numbers, 1), _of_words(numbers, 3)),
    )
    return tl.reshape(tl.join(even, odd), [own.shape[0], 32 * GROUPS])


@triton.jit
def _of_float8(
    words, scales, block, first, groups, blocks, SPAN: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr
):
    """What :func:`_of_groups` gives, of float8 in blocks of outputs from ``block`` on."""
    block += tl.reshape(tl.arange(0, COLUMNS // 64), [COLUMNS // 64, 1, 1, 1, 1, 1])
    m, g = tl.reshape(tl.arange(0, 4), [1, 4, 1, 1, 1, 1]), tl.reshape(tl.arange(0, 8), [1, 1, 8, 1, 1, 1])
    group = first + tl.reshape(tl.arange(0, GROUPS), [1, 1, 1, GROUPS, 1, 1])
    t, each = tl.reshape(tl.arange(0, 4), [1, 1, 1, 1, 4, 1]), tl.reshape(tl.arange(0, 4), [1, 1, 1, 1, 1, 4])
    block = tl.minimum(block, blocks - 1)
    word = tl.load(words + ((block * groups + group) * 512 + m * 128 + g * 16 + t * 4 + each))
    second = ((word << 4) & _LEFT) | ((word >> 4) & _RIGHT)
    word = word & _TOP
    low, high = tl.join(word << 16, second << 16), tl.join(word & -0x10000, second & -0x10000)
    numbers = tl.join(low, high).to(tl.float32, bitcast=True) * 2.0**120
    if SPAN > 0:
        own = tl.load(scales + ((group // SPAN * blocks + block) * 64 + g * 8 + m * 2 + each // 2))
        numbers *= tl.expand_dims(tl.expand_dims(own, 6), 7)
    numbers = tl.reshape(numbers, [COLUMNS // 64, 4, 8, GROUPS, 4, 2, 2, 2, 2])
    return tl.reshape(tl.permute(numbers, (0, 1, 5, 2, 3, 4, 6, 7, 8)), [COLUMNS, 32 * GROUPS])


@triton.jit
def _numbers(
    words, high, factors, scales, first_output, step, outputs, groups,
    FLOAT8: tl.constexpr, SPAN: tl.constexpr, BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr,
    MINIMA: tl.constexpr, HALVES: tl.constexpr, COLUMNS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    first = step * GROUPS
    if FLOAT8:
        block = first_output // 64
        found = _of_float8(words, scales, block, first, groups, tl.cdiv(outputs, 64), SPAN, GROUPS, COLUMNS)
    else:
        own = tl.minimum(first_output + tl.arange(0, COLUMNS), outputs - 1)
        found = _of_groups(words, high, factors, own, first, outputs, BITS, UP, TABLE, MINIMA, HALVES, GROUPS)
    return found


@triton.jit(do_not_specialize=["rows"])
def _multiply_prompt(
    x, words, high, factors, scales, bias, out, rows, outputs, whole, depth, groups, steps, reach,
    FLOAT8: tl.constexpr, SPAN: tl.constexpr, BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr,
    MINIMA: tl.constexpr, HALVES: tl.constexpr, WHOLE: tl.constexpr, EVEN: tl.constexpr, BIASED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """A tile of ``x W^T + b``, over one split of the inner dimension: ``reach`` of its ``steps``."""
    row, first = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS
    column, split = first + tl.arange(0, COLUMNS), tl.program_id(2)
    begin, end = split * reach, tl.minimum(split * reach + reach, steps)
    within = tl.arange(0, 32 * GROUPS)[None, :]
    x += tl.minimum(row, rows - 1).to(tl.int64)[:, None] * depth + within
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    numbers = _numbers(
        words, high, factors, scales, first, begin, outputs, groups,
        FLOAT8, SPAN, BITS, UP, TABLE, MINIMA, HALVES, COLUMNS, GROUPS,
    ).to(x.dtype.element_ty)  # fmt: skip
    for step in tl.range(begin, end):
        at = step * (32 * GROUPS)
        given = tl.load(x + at) if EVEN else tl.load(x + at, mask=within + at < depth, other=0.0)
        total = tl.dot(numbers, tl.trans(given), total, input_precision="ieee")
        numbers = _numbers(
            words, high, factors, scales, first, tl.minimum(step + 1, end - 1), outputs, groups,
            FLOAT8, SPAN, BITS, UP, TABLE, MINIMA, HALVES, COLUMNS, GROUPS,
        ).to(x.dtype.element_ty)  # fmt: skip
    total = tl.trans(total) * (1.0 / (1 << UP))
    own = tl.minimum(column, outputs - 1)
    if WHOLE:
        total *= tl.load(scales + (own // 64 * 64 + own % 8 * 8 + own // 8 % 8 if FLOAT8 else own))[None, :]
    if BIASED and split == 0:
        total += tl.load(bias + own).to(tl.float32)[None, :]
    place = (split * rows + row[:, None]).to(tl.int64) * whole + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(row[:, None] < rows) & (column[None, :] < outputs))


def product_options(form: dict[str, Any], dtype: torch.dtype, depth: int, rows: int, wide: bool) -> dict[str, Any]:
    """What is compiled into a product. ``form``: see :func:`form_options`; ``wide``: see :class:`Gpu`."""
    groups, stages = STEPS[dtype.itemsize]
    sizes = {"ROWS": rows, "COLUMNS": COLUMNS, "GROUPS": groups, "EVEN": depth % (GROUP * groups) == 0}
    return form | sizes | {"num_warps": 4 if wide else 8, "num_stages": stages}


def form_of_float8(span: int) -> dict[str, Any]:
    form = {"FLOAT8": True, "SPAN": span, "BITS": 8, "UP": 0, "TABLE": (), "MINIMA": False, "HALVES": False}
    return form | {"WHOLE": span == 0}


def form_of_groups(number: int) -> dict[str, Any]:
    return {"FLOAT8": False, "SPAN": 0} | form_options(number)


def cut_of(rows: int, outputs: int, steps: int) -> tuple[int, int]:
    """Splits of the inner dimension, and steps of each."""
    splits = 1
    while splits < SPLITS and splits * rows * outputs < PROGRAMS and steps >= 2 * splits * LEAST:
        splits *= 2
    return splits, -(-steps // splits)


def multiply(x: Tensor, matrix: GroupedMatrix | Float8Matrix, gpu: Gpu) -> Tensor:
    """``(splits, rows, out)`` from x ``(rows, in)``: the sum over the splits is ``x W^T + b``. One split is in x's
    type, several are float32."""
    (rows, depth), columns, first = x.shape, len(matrix.weight), 0
    tile = next((size for size in ROWS if size >= rows), ROWS[-1])
    steps, down = -(-depth // (GROUP * STEPS[x.itemsize][0])), -(-rows // tile)
    splits, reach = cut_of(down, -(-columns // COLUMNS), steps)
    out = x.new_empty((splits, rows, columns), dtype=x.dtype if splits == 1 else torch.float32)
    assert x.is_contiguous()
    for part in matrix.parts if isinstance(matrix, GroupedMatrix) else [matrix]:
        if isinstance(part, Float8Matrix):
            form, outputs, groups = form_of_float8(part.span), columns, part.words.shape[1]
            memory = part.words, part.words, part.scales, part.scales
        else:
            form, outputs, groups = form_of_groups(part.number), part.outputs, 0
            memory = part.words, part.high, part.factors, part.whole
        own = slice(first, first + outputs)
        bias = memory[2] if matrix.bias is None else matrix.bias[own]
        with torch.cuda.device_of(x):  # Triton launches on the current device
            _multiply_prompt[(down, -(-outputs // COLUMNS), splits)](
                x, *memory, bias, out[..., own], rows, outputs, columns, depth, groups, steps, reach,
                **product_options(form, x.dtype, depth, tile, gpu.wide), BIASED=matrix.bias is not None,
            )  # fmt: skip
        first += outputs
    return out
