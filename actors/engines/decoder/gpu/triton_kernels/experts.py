"""Products of rows with the experts that each has chosen: one row and expert a program, whatever the others choose.

For the few rows of a round, which read an expert's weights once or twice. Weights are found by their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from actors.engines.decoder.gpu.groups import Float8Matrix, GroupedMatrix
from actors.engines.decoder.gpu.triton_kernels.groups import COLUMNS, product_options, round_rows, sums_of
from actors.engines.weights.matrix import Matrix

DEPTH = 128  # inputs that are read at a time
REGISTERS = 64  # of a thread at most: with more a multiprocessor holds fewer than 32 warps


@triton.jit
def _address(table, expert, kind: tl.constexpr):
    return tl.load(table + expert).to(tl.pointer_type(kind))


@triton.jit(do_not_specialize=["shared"])
def _multiply(
    x, weights, biases, chosen, out, shared, columns, depth,
    KIND: tl.constexpr, BIASED: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Some outputs of one row and one of its experts. ``shared``: experts that read the same row of x."""
    pair = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    expert = tl.load(chosen + pair)
    weight = _address(weights, expert, KIND)
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
    words = tl.multiple_of(_address(all_words, expert, tl.int32), 16)
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


@dataclass(frozen=True, slots=True)
class Mixture:
    """One matrix of each expert, by address. It keeps what it names alive."""

    matrices: Sequence[Matrix]
    weights: tuple[Tensor, ...]  # int64 (experts,) each: weights, or their words, high bits, factors and scales
    biases: Tensor | None  # int64 (experts,)

    @classmethod
    def of(cls, matrices: Sequence[Matrix], device: torch.device) -> Mixture | None:
        """None: they are not of one kind, or do not lie as a kernel reads them."""

        def addresses(tensors: Sequence[Tensor]) -> Tensor:
            return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64, device=device)

        biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
        grouped = [matrix for matrix in matrices if isinstance(matrix, GroupedMatrix)]
        forms = {part.number for matrix in grouped for part in matrix.parts}
        dense = [matrix.weight for matrix in matrices if not isinstance(matrix, GroupedMatrix)]
        if len(biases) not in (0, len(matrices)) or not all(one.is_contiguous() for one in (*dense, *biases)):
            return None
        if any(isinstance(matrix, Float8Matrix) for matrix in matrices):
            return None
        held = addresses(biases) if biases else None
        if dense:
            return cls(matrices, (addresses(dense),), held) if len(dense) == len(matrices) else None
        if len(forms) > 1 or any(len(matrix.parts) > 1 for matrix in grouped):
            return None
        parts = (part for matrix in grouped for part in matrix.parts)
        kinds = zip(*((part.words, part.high, part.factors, part.whole) for part in parts), strict=True)
        return cls(matrices, tuple(addresses(kind) for kind in kinds), held)


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
        else:
            _multiply[grid](
                x, *mixture.weights, chosen if biases is None else biases, chosen, out, shared, columns, depth,
                KIND=KINDS[first.weight.dtype], BIASED=biased, COLUMNS=COLUMNS, DEPTH=DEPTH,
            )  # fmt: skip
    return out
