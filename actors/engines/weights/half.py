"""Float32 weights in float16 where that loses nothing, and fbgemm's products of them.

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

import torch
from torch import Tensor

MAX_ROWS = 64  # up to here rows do not change with their number
TOP = 14  # float16 weights are scaled to have their largest at 2^14 .. 2^15


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


def half_product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """fbgemm's product of float32 rows with a matrix that float16 holds."""
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
    multiply = half_product(torch.randn(64, 256, generator=chance).half().float(), None)
    row = torch.randn(1, 256, generator=chance)
    results = [multiply(row.expand(n, -1).contiguous()) for n in range(1, MAX_ROWS + 1)]
    usual = results[-1].mode(dim=0).values
    return tuple(n for n, result in enumerate(results, 1) if torch.equal(result, usual.expand_as(result)))
