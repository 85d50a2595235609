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

from actors.engines.decoder.gpu.groups import GroupedMatrix
from actors.engines.decoder.gpu.triton_kernels.groups import _chunk, form_options
from actors.engines.weights.layers import Matrix

COLUMNS = 32  # outputs of a program
DEPTH = 128  # inputs that are read at a time


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


@triton.jit(do_not_specialize=["shared"])
def _multiply_groups(
    x, lows, highs, all_factors, table, biases, chosen, out, shared, columns, depth,
    BITS: tl.constexpr, OFFSET: tl.constexpr, MINIMA: tl.constexpr, HALVES: tl.constexpr, LISTED: tl.constexpr,
    KIND: tl.constexpr, BIASED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The same with weights in groups."""
    pair = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    expert = tl.load(chosen + pair)
    low, high = _address(lows, expert, tl.uint8), _address(highs, expert, tl.int32)
    factors = _address(all_factors, expert, tl.int32)
    own = tl.minimum(column, columns - 1)
    row = x + (pair // shared).to(tl.int64) * depth
    within = tl.arange(0, 32)
    total = tl.zeros([COLUMNS], tl.float32)
    for here in range(0, depth, 64):
        chunk = tl.minimum(here, depth) // 64
        at = here + within
        left = tl.load(row + at, mask=at < depth, other=0.0).to(tl.float32)
        right = tl.load(row + at + 32, mask=at + 32 < depth, other=0.0).to(tl.float32)
        one, two = _chunk(low, high, factors, table, own, chunk, columns, BITS, OFFSET, MINIMA, HALVES, LISTED)
        total += tl.sum(one * left[None, :], 1) + tl.sum(two * right[None, :], 1)
    if BIASED:
        total += tl.load(_address(biases, expert, KIND) + own).to(tl.float32)
    tl.store(out + pair.to(tl.int64) * columns + column, total, mask=column < columns)


@dataclass(frozen=True, slots=True)
class Mixture:
    """One matrix of each expert, by address. It keeps what it names alive."""

    matrices: Sequence[Matrix]
    weights: tuple[Tensor, ...]  # int64 (experts,) each: weights, or their low bits, high bits and factors
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
        held = addresses(biases) if biases else None
        if dense:
            return cls(matrices, (addresses(dense),), held) if len(dense) == len(matrices) else None
        if len(forms) > 1 or any(len(matrix.parts) > 1 for matrix in grouped):
            return None
        kinds = zip(*((part.low, part.high, part.factors) for matrix in grouped for part in matrix.parts), strict=True)
        return cls(matrices, tuple(addresses(kind) for kind in kinds), held)


KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def multiply(x: Tensor, chosen: Tensor, mixture: Mixture) -> Tensor:
    """float32 ``(pairs, out)``: row ``pair // shared`` of x ``(pairs / shared, in)`` times the matrix of expert
    ``chosen`` ``(pairs,)`` int64, plus its bias."""
    pairs, first = len(chosen), mixture.matrices[0]
    columns, depth = first.weight.shape
    out = torch.empty((pairs, columns), dtype=torch.float32, device=x.device)
    biases, grid, shared = mixture.biases, (pairs, -(-columns // COLUMNS)), pairs // len(x)
    options = {"BIASED": biases is not None, "COLUMNS": COLUMNS}
    assert x.is_contiguous() and chosen.is_contiguous()
    with torch.cuda.device_of(x):
        if isinstance(first, GroupedMatrix):
            part = first.parts[0]
            _multiply_groups[grid](
                x, *mixture.weights, part.table, chosen if biases is None else biases, chosen, out,
                shared, columns, depth, **form_options(part.number), **options,
                KIND=KINDS[x.dtype if first.bias is None else first.bias.dtype],
            )  # fmt: skip
        else:
            _multiply[grid](
                x, *mixture.weights, chosen if biases is None else biases, chosen, out, shared, columns, depth,
                **options, KIND=KINDS[first.weight.dtype], DEPTH=DEPTH,
            )  # fmt: skip
    return out
