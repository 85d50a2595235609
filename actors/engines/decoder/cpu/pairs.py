"""Pairs of bfloat16, side by side in 32 bits: a processor with AVX512-BF16 multiplies both and adds them up at once, so
twice as many as of float32.
"""

from __future__ import annotations

import llvmlite.binding
import llvmlite.ir as ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import VECTOR, WORDS, address, multiplied, picked

# as numba sees the processor, since it keeps code by that on disk
FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
HAS_BFLOAT16 = "+avx512bf16" in FEATURES
if HAS_BFLOAT16:  # llvmlite has no name for the type that LLVM's own intrinsics take
    llvmlite.binding.initialize_native_asmparser()
HALVES, HALF_VECTOR = ir.VectorType(ir.IntType(16), 2 * LANES), ir.VectorType(ir.IntType(16), LANES)
_UPPER = 0xFFFF0000


def summed(builder, sums, x, y):
    """``sums`` and in each lane the products of two pairs."""
    if HAS_BFLOAT16:
        kind = ir.FunctionType(VECTOR, [VECTOR, WORDS, WORDS])
        return builder.call(ir.InlineAsm(kind, "vdpbf16ps $3, $2, $0", "=v,0,v,v", False), [sums, x, y])
    for one, other in zip(parted(builder, x), parted(builder, y), strict=True):
        sums = multiplied(builder, one, other, sums)
    return sums


def parted(builder, words):
    """The first and the second numbers of pairs."""
    lower, upper = builder.shl(words, picked([16] * LANES)), builder.and_(words, picked([_UPPER] * LANES))
    return builder.bitcast(lower, VECTOR), builder.bitcast(upper, VECTOR)


def rounded(builder, numbers):
    """A vector of float32 in bfloat16: the nearest, ties to even."""
    if HAS_BFLOAT16:
        kind = ir.FunctionType(HALF_VECTOR, [VECTOR])
        return builder.call(ir.InlineAsm(kind, "vcvtneps2bf16 $1, $0", "=v,v", False), [numbers])
    sixteen, bits = picked([16] * LANES), builder.bitcast(numbers, WORDS)
    odd = builder.and_(builder.lshr(bits, sixteen), picked([1] * LANES))
    bits = builder.add(builder.add(bits, picked([0x7FFF] * LANES)), odd)
    return builder.trunc(builder.lshr(bits, sixteen), HALF_VECTOR)


@intrinsic
def store_rounded(typing, halves, at, vector):
    """A vector of float32 into the bits of bfloat16."""

    def generate(context, builder, signature, arguments):
        place = address(context, builder, signature.args[0], *arguments[:2], count=LANES)
        numbers = rounded(builder, arguments[2])
        builder.store(numbers, builder.bitcast(place, HALF_VECTOR.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(halves, types.intp, vector), generate
