"""A matrix of weights, and which kernel multiplies it on this processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.decoder.torch.attention import MIN_ROWS
from actors.engines.weights.grouped import Blocks
from actors.engines.weights.packed import Int8Linear, PackedLinear, can_pack
from actors.engines.weights.rows import fixed_rows

Multiply = Callable[[Tensor], Tensor]  # (rows, in) -> (rows, out), bias included


@dataclass(slots=True)
class Matrix:
    """``y = x W^T + b`` with W ``(out, in)``. With ``blocks`` the weight lies there and is a shape alone here."""

    weight: Tensor
    bias: Tensor | None = None
    blocks: Blocks | None = None

    @classmethod
    def of_blocks(cls, blocks: Blocks, bias: Tensor | None = None) -> Matrix:
        return cls(torch.empty(blocks.shape, device="meta"), bias, blocks)


@dataclass(slots=True)
class Linear:
    """``multiply(x) == x W^T + b``."""

    multiply: Multiply
    matrix: Matrix | None = None  # what is multiplied, where it is kept as it was


def rows_for(rows: int) -> int:
    """The row count to which an exact forward of ``rows`` is padded on a CPU, as attention is."""
    return max(rows, MIN_ROWS)


def plain(matrix: Matrix) -> Linear:
    """torch's own layer, on any device."""
    weight, bias = matrix.weight, matrix.bias
    return Linear(lambda x: functional.linear(x, weight, bias), matrix=matrix)


def fast(matrix: Matrix, dtype: torch.dtype, int8: bool) -> Linear:
    """The quickest kernel for few rows. The choice depends on nothing but the weights and the processor, because bits
    must be the same after a restart."""
    weight, bias = matrix.weight, matrix.bias
    if weight.device.type != "cpu":
        return plain(matrix)
    if int8:
        return Linear(Int8Linear(weight, bias))
    if can_pack(dtype):
        return Linear(PackedLinear(weight, bias).multiply)
    return Linear(
        lambda x: fixed_rows(lambda part: functional.linear(part, weight, bias), x, len(weight)), matrix=matrix
    )
