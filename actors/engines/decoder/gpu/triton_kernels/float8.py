"""Linear layers of float8_e4m3fn weights for a GPU: tensor cores multiply them at every number of rows.

Words lie in the order of tensor cores' operands (:class:`Float8Matrix`). So a thread converts its own reads to
bfloat16, in five instructions for four numbers: the bits of float8 moved into it are the number divided by 2 ** 120.
Rows are multiplied by 2 ** 80, lest such small products vanish. They are bfloat16 too: of float16 the sum of two
numbers, and of float32 of three, so that none is rounded. Each of ``LANES`` warps has groups of its own, and their sums
are added as a tree: a row has the same bits in any company. The inner dimension is cut as in :mod:`.groups`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.decoder.gpu.groups import BLOCK, LANES, LEFT, RIGHT, TOP, Float8Matrix
from actors.engines.decoder.gpu.triton_kernels.codes import halves
from actors.engines.decoder.gpu.triton_kernels.groups import cut_of
from actors.engines.weights.formats import GROUP

ROWS = (8, 16)  # rows of a program: tensor cores take 8, and with 32 a multiprocessor holds 12 warps
PIECES = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 3}  # numbers of bfloat16 that one is the sum of
_TOP, _LEFT, _RIGHT = tl.constexpr(TOP), tl.constexpr(LEFT), tl.constexpr(RIGHT)
_UP, _BACK = tl.constexpr(2.0**80), tl.constexpr(2.0**40)


@triton.jit
def _weights(words, LANES: tl.constexpr):
    """bfloat16 ``(LANES, 64, 32)`` of words ``(4, LANES, 8, 4, 4)``."""
    second = ((words << 4) & _LEFT) | ((words >> 4) & _RIGHT)
    made = tl.join(halves(words & _TOP), halves(second)).to(tl.bfloat16, bitcast=True)
    made = tl.reshape(made, [4, LANES, 8, 4, 2, 2, 2, 2])
    return tl.reshape(tl.permute(made, (1, 0, 4, 2, 5, 3, 7, 6)), [LANES, 64, 32])


@triton.jit
def _inputs(x, LANES: tl.constexpr, ROWS: tl.constexpr):
    """Rows ``(LANES, ROWS, 32)`` on their side, with inputs in the order of :func:`_weights`."""
    parted = tl.reshape(x, [LANES, ROWS, 4, 2, 2, 2])
    return tl.reshape(tl.permute(parted, (0, 3, 2, 4, 5, 1)), [LANES, 32, ROWS])


@triton.jit
def _scales(scales, LANES: tl.constexpr, ROWS: tl.constexpr):
    """``(LANES, 64, ROWS)``, each from the thread that asks for it, of pointers ``(LANES, 8, 4, 4)``."""
    found = tl.permute(tl.join(tl.load(scales), tl.load(scales + 4)), (0, 4, 3, 1, 2))
    found = tl.broadcast_to(tl.reshape(found, [LANES, 64, 1, 4, 1]), [LANES, 64, ROWS // 8, 4, 2])
    return tl.reshape(found, [LANES, 64, ROWS])


@triton.jit
def sums_of(
    x, words, scales, block, row, begin, end, depth, groups, blocks,
    SPAN: tl.constexpr, PIECES: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sums ``(64, ROWS)`` of rows ``row`` with a block of outputs, over the groups from ``begin`` to ``end``.

    ``SPAN``: groups that have a scale; 0: all."""
    span: tl.constexpr = SPAN if SPAN > 0 else 1
    first = begin + tl.arange(0, LANES)
    thread = tl.arange(0, 8)[:, None] * 4 + tl.arange(0, 4)[None, :]
    at = (block * groups + first).to(tl.int64)[None, :] * 128 + tl.arange(0, 4)[:, None] * 32
    words += tl.expand_dims(tl.expand_dims(tl.expand_dims(at, 2), 3) + thread, 4) * 4 + tl.arange(0, 4)
    within = tl.expand_dims(first, 1)[:, :, None] * 32 + tl.arange(0, 32)[None, None, :]
    x += tl.expand_dims((row.to(tl.int64) * depth)[None, :], 2) + within
    place = tl.expand_dims(tl.expand_dims(((first // span) * blocks + block)[:, None] * 64, 2), 3)
    own = scales + block * 64 + tl.arange(0, 64) % 8 * 8 + tl.arange(0, 64) // 8
    scales += place + tl.expand_dims(thread // 4 * 8, 2) + tl.arange(0, 4)
    sums = tl.zeros([LANES, 64, ROWS], tl.float32)
    for here in tl.range(begin, end, LANES):
        weights = _weights(tl.load(words), LANES)
        left = tl.load(x) if EVEN else tl.load(x, mask=within + (here - begin) * 32 < depth, other=0.0)
        total = sums if SPAN == 0 else tl.zeros([LANES, 64, ROWS], tl.float32)
        for _ in tl.static_range(PIECES):
            given = left.to(tl.bfloat16)
            left = left - given.to(left.dtype)
            total = tl.dot(weights, _inputs(given * _UP, LANES, ROWS), total)
        if SPAN == 0:
            sums = total
        else:
            sums = tl.fma(total, _scales(scales, LANES, ROWS), sums)
            scales += LANES // span * blocks * 64
        words += LANES * 512
        x += LANES * 32
    one, other = tl.split(tl.permute(tl.reshape(sums, [2, 2, 64 * ROWS]), (1, 2, 0)))
    one, other = tl.split(tl.permute(one + other, (1, 0)))
    found = tl.reshape(one + other, [64, ROWS]) * _BACK
    return found * tl.load(own)[:, None] if SPAN == 0 else found


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x, words, scales, bias, out, rows, outputs, depth, groups, blocks, reach,
    SPAN: tl.constexpr, PIECES: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """Some rows and a block of outputs of ``x W^T + b``, over one split of the inner dimension."""
    row, block, split = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1), tl.program_id(2)
    begin, column = split * reach, block * 64 + tl.arange(0, 64)
    total = sums_of(
        x, words, scales, block, tl.minimum(row, rows - 1), begin, tl.minimum(begin + reach, groups), depth, groups,
        blocks, SPAN, PIECES, EVEN, ROWS, LANES,
    )  # fmt: skip
    if BIASED and split == 0:
        total += tl.load(bias + tl.minimum(column, outputs - 1)).to(tl.float32)[:, None]
    place = (split * rows + row[None, :]).to(tl.int64) * outputs + column[:, None]
    tl.store(out + place, total, mask=(row[None, :] < rows) & (column[:, None] < outputs))


def product_options(matrix: Float8Matrix, x: Tensor, rows: int) -> dict[str, Any]:
    """What is compiled into a product of ``rows`` rows a program."""
    even = x.shape[1] % (LANES * GROUP) == 0
    return {"SPAN": matrix.span, "PIECES": PIECES[x.dtype], "EVEN": even, "ROWS": rows, "LANES": LANES}


def multiply(x: Tensor, matrix: Float8Matrix) -> Tensor:
    """float32 ``(splits, rows, out)``; its sum over the splits is ``x W^T + b``, from x ``(rows, in)``."""
    (rows, depth), (blocks, groups), outputs = x.shape, matrix.words.shape[:2], len(matrix.weight)
    tile = next((size for size in ROWS if size >= rows), ROWS[-1])
    splits, reach = cut_of(outputs, groups, BLOCK)
    out, bias = x.new_empty((splits, rows, outputs), dtype=torch.float32), matrix.bias
    assert x.is_contiguous()
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _multiply[(-(-rows // tile), blocks, splits)](
            x, matrix.words, matrix.scales, matrix.scales if bias is None else bias, out,
            rows, outputs, depth, groups, blocks, reach,
            **product_options(matrix, x, tile), BIASED=bias is not None, num_stages=1,
        )  # fmt: skip
    return out
