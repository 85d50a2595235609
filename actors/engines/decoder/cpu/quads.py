"""Quads of int8, four inputs side by side in 32 bits: a processor with AVX512-VNNI multiplies all four and adds them up
at once, so four times as many as of float32, and a weight is a byte.

Weights are stored as their value and ``OFFSET``, since the instruction takes one factor without a sign. Inputs are
rounded by groups of ``INPUTS`` of a row, each to 1/127 of its largest: their bits depend on nothing but the row. Sums
of a group are integers, so exact; the groups' are added up in float32, in their order.
"""

from __future__ import annotations

import llvmlite.binding
import llvmlite.ir as ir
import numpy as np
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from actors.engines.decoder.cpu.pairs import FEATURES
from actors.engines.decoder.cpu.simd import (
    LANES,
    VECTOR,
    WORDS,
    address,
    fma,
    highest,
    larger,
    load,
    multiplied,
    picked,
    splat,
    splatted,
)

HAS_QUADS = "+avx512vnni" in FEATURES
if HAS_QUADS:  # processors with it but without AVX512-BF16 have no other assembler code
    llvmlite.binding.initialize_native_asmparser()
INPUTS = 128  # of a group, which are rounded alike
QUADS = INPUTS // 4
SCALE, CORRECTION = QUADS, QUADS + 1  # behind a group's quads: the bits of a float32, and what sums begin with
WORDS_OF_GROUP = QUADS + 2
OFFSET, LARGEST = 128, np.float32(127)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_ZERO = np.float32(0)


def dot(builder, sums, unsigned, signed):
    """``sums`` and in each lane the products of four bytes, where ``HAS_QUADS``."""
    kind = ir.FunctionType(WORDS, [WORDS] * 3)
    return builder.call(ir.InlineAsm(kind, "vpdpbusd $3, $2, $0", "=v,0,v,v", False), [sums, unsigned, signed])


@njit(error_model="numpy")
def words_of(size):
    """Of a row of ``size`` inputs, rounded: for each group its quads, the scale and what its sums begin with."""
    return (size + INPUTS - 1) // INPUTS * WORDS_OF_GROUP


def room_of(size):
    """Numbers of 16 bits that are room for a row of ``size`` inputs in either type: see :func:`team.Team.make_room`."""
    return size + INPUTS


def first_sum(builder, group):
    """What a group's sums begin with, given a pointer to its quads: what ``OFFSET`` adds to them is taken away."""
    return splatted(builder, builder.load(builder.gep(group, [ir.IntType(64)(CORRECTION)])))


def with_group(builder, group, sums, out):
    """``out`` and a group's sums in float32."""
    bits = builder.load(builder.gep(group, [ir.IntType(64)(SCALE)]))
    scale = splatted(builder, builder.bitcast(bits, ir.FloatType()))
    return multiplied(builder, builder.sitofp(sums, VECTOR), scale, out)


@intrinsic
def _store_bytes(typing, words, at, vector):
    """A vector of float32 from -127 to 127 into the words from ``at`` on, a byte each, to the nearest, ties to even."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(VECTOR, [VECTOR])
        rint = cgutils.get_or_insert_function(builder.module, kind, "llvm.rint.v16f32")
        numbers = builder.trunc(builder.fptosi(builder.call(rint, [arguments[2]]), WORDS), _BYTES)
        place = address(context, builder, signature.args[0], *arguments[:2])
        builder.store(numbers, builder.bitcast(place, _BYTES.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(words, types.intp, vector), generate


@intrinsic
def _total_bytes(typing, words, at):
    """The sum of a group's bytes."""

    def generate(context, builder, signature, arguments):
        first = address(context, builder, signature.args[0], *arguments)
        sums, ones = picked([0] * LANES), picked([0x01010101] * LANES)
        for part in range(0, QUADS, LANES):
            place = builder.gep(first, [ir.IntType(64)(part)])
            sums = dot(builder, sums, ones, builder.load(builder.bitcast(place, WORDS.as_pointer()), align=4))
        kind = ir.FunctionType(ir.IntType(32), [WORDS])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, "llvm.vector.reduce.add.v16i32"), [sums]
        )

    return types.int32(words, types.intp), generate


@njit(error_model="numpy")
def quantize(x, rows, size, words):
    """Rows of ``size`` numbers, a multiple of ``LANES``, in quads: see :func:`words_of`."""
    minus, zero, at = splat(np.float32(-1)), splat(_ZERO), 0
    scales = words.view(np.float32)
    for row in range(rows):
        for begin in range(row * size, (row + 1) * size, INPUTS):
            count, most = min(INPUTS, (row + 1) * size - begin), zero
            for i in range(0, count, LANES):
                part = load(x, begin + i)
                most = larger(most, larger(part, fma(part, minus, zero)))
            largest = highest(most)
            inverse = splat(LARGEST / largest if largest > _ZERO else _ZERO)
            for i in range(0, count, LANES):
                _store_bytes(words, at + i // 4, fma(load(x, begin + i), inverse, zero))
            for i in range(count, INPUTS, LANES):
                _store_bytes(words, at + i // 4, zero)
            scales[at + SCALE] = largest / LARGEST
            words[at + CORRECTION] = -OFFSET * _total_bytes(words, at)
            at += WORDS_OF_GROUP
