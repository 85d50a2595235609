"""Products of rows with the experts that each has chosen: one row and expert a program, whatever the others choose.

For the few rows of a round, which read an expert's weights once or twice. Weights are found by their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.decoder.gpu.groups import Float8Matrix, GroupedMatrix
from actors.engines.decoder.gpu.triton_kernels import float8
from actors.engines.decoder.gpu.triton_kernels.groups import COLUMNS, product_options, round_rows, sums_of
from actors.engines.weights.matrix import Matrix

DEPTH = 128  # inputs that are read at a time
REGISTERS = 64  # registers of a thread at most: with more a multiprocessor holds fewer than 32 warps


@triton.jit
def _address(table, expert, kind: tl.constexpr):
    return tl.load(table + expert).to(tl.pointer_type(kind))


@triton.jit
def _aligned(table, expert, kind: tl.constexpr):
    """An address at a multiple of 16 bytes. Triton loses the hint where it is given to a call's result."""
    return tl.multiple_of(tl.load(table + expert).to(tl.pointer_type(kind)), 16)


@triton.jit(do_not_specialize=["shared"])
def _multiply(
    x, weights, biases, chosen, out, shared, columns, depth,
    KIND: tl.constexpr, BIASED: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Some outputs of one row and one of its experts. ``shared``: experts that read the same row of x."""
    pair = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    expert = tl.load(chosen + pair)
    weight = _aligned(weights, expert, KIND)
    own = tl.minimum(column, columns - 1).to(tl.int64)[:, None] * depth
    total = tl.zeros([COLUMNS], tl.float32)
    for here in range(0, depth, DEPTH):
        at = here + tl.arange(0, DEPTH)
        given = tl.load(x + (pair // shared).to(tl.int64) * depth + at, mask=at < depth, other=0.0).to(tl.float32)
        read = tl.load(weight + own + at[None, :], mask=(at < depth)[None, :], other=0.0).to(tl.float32)
        total += tl.sum(read * given[None, :], 1)
    if BIASED:
        total += tl.load(_address(biases, expert, KIND) + tl.minimum(column, columns - 1)).to(tl.float32)
    tl.store(out + pair.to(tl.int64) * columns + column, total, mask=column < columns)


@triton.jit(do_not_specialize=["shared", "apart"])
def _multiply_groups(
    x, all_words, highs, all_factors, all_scales, biases, chosen, out, shared, apart, columns, groups,
    BITS: tl.constexpr, UP: tl.constexpr, TABLE: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr,
    WHOLE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr,
    STEPS: tl.constexpr, KIND: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """The same with weights in groups, and rows in 8 bits."""
    pair = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    expert = tl.load(chosen + pair)
    words = _aligned(all_words, expert, tl.int32)
    factors = _address(all_factors, expert, tl.int32 if MINIMA or HALVES else tl.float16)
    own = tl.minimum(column, columns - 1)
    (total,) = sums_of(
        x, words, _address(highs, expert, tl.int32), factors, _address(all_scales, expert, tl.float32), own,
        pair // shared, 0, groups, apart, columns,
        BITS, UP, TABLE, MINIMA, HALVES, WHOLE, ROWS, COLUMNS, LANES, STEPS,
    )  # fmt: skip
    if BIASED:
        total += tl.load(_address(biases, expert, KIND) + own).to(tl.float32)
    tl.store(out + pair.to(tl.int64) * columns + column, total, mask=column < columns)


@triton.jit(do_not_specialize=["shared"])
def _multiply_float8(
    x, all_words, all_scales, biases, chosen, out, shared, columns, depth, groups, blocks,
    SPAN: tl.constexpr, PIECES: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    KIND: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """The same in float8: tensor cores multiply the row ``ROWS`` times."""
    pair, block = tl.program_id(0), tl.program_id(1)
    expert, column = tl.load(chosen + pair), block * 64 + tl.arange(0, 64)
    words = _aligned(all_words, expert, tl.int32)
    scales = _aligned(all_scales, expert, tl.float32)
    row = tl.minimum(pair // shared + tl.arange(0, ROWS), pair // shared)
    total = float8.sums_of(
        x, words, scales, block, row, 0, groups, depth, groups, blocks, SPAN, PIECES, EVEN, ROWS, LANES
    )
    if BIASED:
        total += tl.load(_address(biases, expert, KIND) + tl.minimum(column, columns - 1)).to(tl.float32)[:, None]
    place = pair.to(tl.int64) * columns + column[:, None] + tl.zeros([64, ROWS], tl.int64)
    tl.store(out + place, total, mask=(tl.arange(0, ROWS)[None, :] < 1) & (column[:, None] < columns))


@dataclass(frozen=True, slots=True)
class Mixture:
    """One matrix of each expert, by address. It keeps the named tensors alive."""

    matrices: Sequence[Matrix]
    weights: tuple[Tensor, ...]  # int64 (experts,) each: weights, or what :func:`_tensors` names
    biases: Tensor | None  # int64 (experts,)

    @classmethod
    def of(cls, matrices: Sequence[Matrix], device: torch.device) -> Mixture | None:
        """None: they are not of one kind, or do not lie as a kernel reads them, at multiples of 16 bytes."""

        biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
        if len(biases) not in (0, len(matrices)) or len({_kind(matrix) for matrix in matrices}) > 1:
            return None
        tensors = [*map(_tensors, matrices)]
        if not all(tensor.is_contiguous() for tensor in (*chain(*tensors), *biases)):
            return None
        if any(tensor.data_ptr() % 16 for tensor in chain(*tensors)):
            return None
        found = [
            torch.tensor([tensor.data_ptr() for tensor in each], dtype=torch.int64, device=device)
            for each in (*zip(*tensors, strict=True), biases)
        ]
        return cls(matrices, tuple(found[:-1]), found[-1] if biases else None)


def _kind(matrix: Matrix) -> tuple[object, ...]:
    """What experts of one kernel have in common."""
    if isinstance(matrix, GroupedMatrix):
        return GroupedMatrix, *(part.number for part in matrix.parts)
    return type(matrix), matrix.span if isinstance(matrix, Float8Matrix) else matrix.weight.dtype


def _tensors(matrix: Matrix) -> tuple[Tensor, ...]:
    """What a kernel reads, by address."""
    if isinstance(matrix, Float8Matrix):
        return matrix.words, matrix.scales
    if isinstance(matrix, GroupedMatrix):
        (part,) = matrix.parts
        return part.words, part.high, part.factors, part.whole
    return (matrix.weight,)


KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def multiply(x: Tensor, chosen: Tensor, mixture: Mixture) -> Tensor:
    """float32 ``(pairs, out)``: row ``pair // shared`` of x ``(pairs / shared, in)`` times the matrix of expert
    ``chosen`` ``(pairs,)`` int64, plus its bias."""
    pairs, first = len(chosen), mixture.matrices[0]
    columns, depth = first.weight.shape
    out = torch.empty((pairs, columns), dtype=torch.float32, device=x.device)
    biases, grid, shared = mixture.biases, (pairs, -(-columns // COLUMNS)), pairs // len(x)
    biased = biases is not None
    assert x.is_contiguous() and chosen.is_contiguous()
    with torch.cuda.device_of(x):
        if isinstance(first, GroupedMatrix):
            records, part = round_rows(x).records, first.parts[0]
            _multiply_groups[grid](
                records, *mixture.weights, chosen if biases is None else biases, chosen, out,
                shared, records.shape[1], columns, records.shape[0], **product_options(part.number, 1),
                KIND=KINDS[x.dtype if first.bias is None else first.bias.dtype], BIASED=biased, maxnreg=REGISTERS,
            )  # fmt: skip
        elif isinstance(first, Float8Matrix):
            blocks, groups = first.words.shape[:2]
            _multiply_float8[(pairs, blocks)](
                x, *mixture.weights, chosen if biases is None else biases, chosen, out,
                shared, columns, depth, groups, blocks, **float8.product_options(first, x, float8.ROWS[0]),
                KIND=KINDS[x.dtype if first.bias is None else first.bias.dtype], BIASED=biased, num_stages=1,
            )  # fmt: skip
        else:
            _multiply[grid](
                x, *mixture.weights, chosen if biases is None else biases, chosen, out, shared, columns, depth,
                KIND=KINDS[first.weight.dtype], BIASED=biased, COLUMNS=COLUMNS, DEPTH=DEPTH,
            )  # fmt: skip
    return out
