"""Linear layers of the fused decoder on a CPU: which kernel reads which matrix.

Checkpoints are mostly published in 16 bits. A matrix of such values times a power of two is exactly a float16 matrix,
and fbgemm multiplies those with float32 activations and sums: float32's result for half the memory traffic, which is
what a decoder of few rows waits for. The power of two comes back out where it costs nothing (in the weights of the
norm before the layer, or in the addition behind it) and is exact.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.attention import MIN_ROWS
from actors.engines.backends.llama.weights import Matrix
from actors.engines.packed import Int8Linear, PackedLinear, can_pack

MAX_ROWS = 64  # up to here rows do not change with their number
TOP = 14  # float16 weights are scaled to have their largest at 2^14 .. 2^15

Multiply = Callable[[Tensor], Tensor]  # (rows, in) -> (rows, out), bias included


@dataclass(slots=True)
class Linear:
    """``multiply(x) * scale == x W^T + b``."""

    multiply: Multiply
    scale: float = 1.0
    kind: str = "plain"  # "plain", "packed", "half", "int8"


def exponent(weight: Tensor) -> int:
    """The power of two that puts the largest weight at the top of float16's range."""
    largest = float(weight.abs().max())
    return TOP - math.frexp(largest)[1] + 1 if largest > 0 else 0


def is_half(weight: Tensor) -> bool:
    """Whether float16 holds these float32 weights, scaled, to within 2^-32 of the largest: bfloat16 and float16
    checkpoints."""
    scaled = weight.float() * 2.0 ** exponent(weight)
    return bool((scaled.half().float() - scaled).abs().max() <= 2.0 ** (TOP + 1 - 32))


@functools.cache
def has_half() -> bool:
    """Whether fbgemm's float16 kernels are here (x86 with AVX2 or AVX-512)."""
    return "fbgemm" in torch.backends.quantized.supported_engines and torch.backends.cpu.get_cpu_capability() in (
        "AVX2",
        "AVX512",
    )


def _half(weight: Tensor, bias: Tensor | None) -> Multiply:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
    operation = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: operation(x, packed)


@functools.cache
def half_rows() -> tuple[int, ...]:
    """Row counts up to ``MAX_ROWS`` for which every row of a float16 product is added up in the same order.

    fbgemm cuts the rows into tiles, and its tiles of one or two rows add in an order of their own. Which tiles it uses
    depends on the processor, so it is found out: of equal rows, those out of another tile differ.
    """
    chance = torch.Generator().manual_seed(0)
    multiply = _half(torch.randn(64, 256, generator=chance).half().float(), None)
    row = torch.randn(1, 256, generator=chance)
    results = [multiply(row.expand(n, -1).contiguous()) for n in range(1, MAX_ROWS + 1)]
    usual = results[-1].mode(dim=0).values
    return tuple(n for n, result in enumerate(results, 1) if torch.equal(result, usual.expand_as(result)))


def rows_for(rows: int) -> int:
    """The row count to which an exact forward of ``rows`` is padded on a CPU; attention pads to ``MIN_ROWS`` anyway."""
    agreeing = half_rows() if has_half() else ()
    return next((n for n in agreeing if n >= max(rows, MIN_ROWS)), max(rows, MIN_ROWS))


def plain(matrix: Matrix) -> Linear:
    """torch's own layer, on any device."""
    weight, bias = matrix.weight, matrix.bias
    return Linear(lambda x: functional.linear(x, weight, bias))


def fast(matrix: Matrix, dtype: torch.dtype, int8: bool, exact: bool, behind: bool) -> Linear:
    """The quickest kernel for few rows. The choice depends on nothing but the weights and the processor, because bits
    must be the same after a restart.

    ``exact``: rows must not depend on their number. ``behind``: the scale is applied to the product (the caller adds
    it to the residual); otherwise the caller applies it to the input, and the bias is left alone.
    """
    weight, bias = matrix.weight, matrix.bias
    if weight.device.type != "cpu":
        return plain(matrix)
    if int8 and not exact:
        return Linear(Int8Linear(weight, bias), kind="int8")
    if dtype == torch.float32 and has_half() and is_half(weight) and (not exact or MAX_ROWS in half_rows()):
        power = 2.0 ** exponent(weight)
        scaled_bias = bias if bias is None or not behind else bias * power
        return Linear(_half(weight * power, scaled_bias), 1.0 / power, "half")
    if can_pack(dtype):
        layer = PackedLinear(weight, bias)
        packed, operation = layer.packed, torch.ops.mkldnn._linear_pointwise.default
        return Linear(lambda x: operation(x, packed, bias, "none", [], ""), kind="packed")
    return plain(matrix)


def unscaled(matrix: Matrix, int8: bool) -> Multiply | None:
    """A packed kernel for a draft model's float32 matrix: int8 if asked for, float16 if that loses nothing; else
    None. What is lost of the smallest weights without scaling is of float32's rounding."""
    weight, bias = matrix.weight, matrix.bias
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    if int8:
        return Int8Linear(weight, bias)
    if has_half() and float(weight.abs().max()) < 2.0**TOP and is_half(weight):
        return _half(weight, bias)
    return None
