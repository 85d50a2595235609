"""Linear layers of few rows for a GPU: a row's bits do not depend on the number of rows.

cuBLAS chooses by the number of rows how it adds up: on an H200 rows 1 to 16 of a 7B model agree with one another; they
differ from 24 and 32, and from 48 and 64. Here the inner dimension is always cut in the same way, into ``splits`` that
depend on nothing but the matrix, with sums that stay apart: whoever reads them adds them in order (:mod:`.between`).

Such a layer takes as long as reading its weights, so they are the larger side of a tile and the rows the smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.decoder.gpu.triton_kernels.gpu import Gpu
from actors.engines.weights.matrix import Matrix

COLUMNS = 64  # outputs of a program: the least for which Hopper's matrix units take the weights' side whole
# Bytes of a weight's row, read at a time; half as many where a processor has less memory than SMALL, as those of
# capability 8.6, 8.9 and 12.0 have, so that two programs find room there as well
DEPTH_BYTES, SMALL = 256, 128 << 10
ROWS = (16, 32, 64, 128)  # rows of a program; more rows are several programs that read the same weights
PROGRAMS = 192  # a matrix of fewer programs than this is split: an H200 has 132 multiprocessors
SPLITS = 4
# Reads of a program on their way at once: as many as let two programs share a multiprocessor's memory (a gated layer's
# 172 programs on an H200's 132: 45 us with three, the best of six ways), unless those would be fewer than LEAST.
STAGES, LEAST_STAGES = 4, 3


@triton.jit(do_not_specialize=["rows"])  # one program for all counts of rows
def _multiply(
    x, weight, bias, out, rows, columns, depth, reach,
    BIASED: tl.constexpr, GATED: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One tile of ``x W^T + b``, over one split of the inner dimension. ``GATED``: of ``silu(x G^T) * (x U^T)``, with G
    in the first half of W's rows and U in the second."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(2)
    within = tl.arange(0, DEPTH)
    begin = split * reach
    asked = row[:, None] < rows
    own = tl.minimum(column, columns - 1)
    first = own.to(tl.int64)[:, None] * depth + within[None, :]
    at = row[:, None] * depth + within[None, :]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    second = tl.zeros([COLUMNS, ROWS], tl.float32)
    for here in range(begin, tl.minimum(begin + reach, depth), DEPTH):
        if EVEN:
            given = tl.load(x + at + here, mask=asked, other=0.0)
            read = tl.load(weight + first + here, eviction_policy="evict_first")
        else:
            inside = here + within[None, :] < depth
            given = tl.load(x + at + here, mask=asked & inside, other=0.0)
            read = tl.load(weight + first + here, mask=inside, other=0.0, eviction_policy="evict_first")
        turned = tl.trans(given)
        total = tl.dot(read, turned, total, input_precision="ieee")
        if GATED:
            half = columns.to(tl.int64) * depth
            if EVEN:
                other = tl.load(weight + half + first + here, eviction_policy="evict_first")
            else:
                inside = here + within[None, :] < depth
                other = tl.load(weight + half + first + here, mask=inside, other=0.0, eviction_policy="evict_first")
            second = tl.dot(other, turned, second, input_precision="ieee")
    if BIASED:
        if split == 0:
            total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[:, None]
        if GATED:
            second += tl.load(bias + columns + column, mask=column < columns, other=0.0).to(tl.float32)[:, None]
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * second
    place = (split * rows + row[None, :]).to(tl.int64) * columns + column[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(row[None, :] < rows) & (column[:, None] < columns))


@dataclass(frozen=True, slots=True)
class Cut:
    """How a layer's work is divided."""

    rows: int
    depth: int
    splits: int
    reach: int  # length of the inner dimension in each split
    stages: int


def cut_of(rows: int, columns: int, depth: int, itemsize: int, gated: bool, shared: int) -> Cut:
    """``columns``: outputs. ``shared``: bytes of shared memory of a processor.

    ``depth``, ``splits`` and ``reach`` do not depend on ``rows``, for bits do depend on them.
    """
    tile = next((size for size in ROWS if size >= rows), ROWS[-1])
    read, step = DEPTH_BYTES if shared > SMALL else DEPTH_BYTES // 2, DEPTH_BYTES // itemsize
    splits = 1
    while not gated and splits < SPLITS and -(-columns // COLUMNS) * splits < PROGRAMS and depth >= 8 * splits * step:
        splits *= 2
    reach = -(-depth // (splits * step)) * step
    stage = (COLUMNS * (2 if gated else 1) + tile) * read
    beside = shared // 2 // stage
    alone = min(STAGES if shared > SMALL else LEAST_STAGES, max(1, shared // stage))
    return Cut(tile, read // itemsize, splits, reach, min(STAGES, beside) if beside >= LEAST_STAGES else alone)


def _launch(x: Tensor, matrix: Matrix, out: Tensor, columns: int, gated: bool, cut: Cut) -> None:
    (rows, depth), weight, bias = x.shape, matrix.weight, matrix.bias
    assert x.is_contiguous() and weight.is_contiguous()
    with torch.cuda.device_of(x):  # Triton launches on the current device
        _multiply[(-(-rows // cut.rows), -(-columns // COLUMNS), cut.splits)](
            x, weight, weight if bias is None else bias, out, rows, columns, depth, cut.reach,
            BIASED=bias is not None, GATED=gated, EVEN=depth % cut.depth == 0,
            ROWS=cut.rows, COLUMNS=COLUMNS, DEPTH=cut.depth, num_stages=cut.stages,
        )  # fmt: skip


def multiply(x: Tensor, matrix: Matrix, gpu: Gpu) -> Tensor:
    """float32 ``(splits, rows, out)``; its sum over the splits is ``x W^T + b``, from x ``(rows, in)`` and W
    ``(out, in)`` of the same type."""
    columns = len(matrix.weight)
    cut = cut_of(len(x), columns, x.shape[1], x.element_size(), False, gpu.shared)
    out = x.new_empty((cut.splits, len(x), columns), dtype=torch.float32)
    _launch(x, matrix, out, columns, False, cut)
    return out


def multiply_gated(x: Tensor, matrix: Matrix, gpu: Gpu) -> Tensor:
    """``silu(x G^T) * (x U^T)`` ``(rows, inner)`` in x's type, W ``(2 * inner, in)`` being G above U."""
    inner = len(matrix.weight) // 2
    out = x.new_empty((len(x), inner))
    cut = cut_of(len(x), inner, x.shape[1], x.element_size(), True, gpu.shared)
    _launch(x, matrix, out, inner, True, cut)
    return out
