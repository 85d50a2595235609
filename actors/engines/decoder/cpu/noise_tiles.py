"""The shared noise (see :mod:`actors.engines.sampling.noise`) of sixteen tokens at a time, as LLVM's code.

Written in Python its integers and logarithms do not become vectors: 27 ns for a token instead of one or two.
"""

from __future__ import annotations

import math

import llvmlite.ir as ir
from numba.core import types

from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import VECTOR, WORDS, Vector, multiplied, picked, splatted, written

_GOLDEN, _MUL1, _MUL2 = 0x9E3779B1, 0x7FEB352D, 0x846CA68B


def _words(number):
    return picked([number] * LANES)


def _floats(number):
    return ir.Constant(VECTOR, [number] * LANES)


def _logarithm(builder, x):
    """The logarithm of positive normal numbers (Cephes' logf)."""
    bits = builder.bitcast(x, WORDS)
    power = builder.sitofp(builder.sub(builder.lshr(bits, _words(23)), _words(126)), VECTOR)
    part = builder.or_(builder.and_(bits, _words(0x7FFFFF)), _words(0x3F000000))  # a number from a half up to one
    part = builder.bitcast(part, VECTOR)
    low = builder.fcmp_ordered("<", part, _floats(0.707106781186547524))
    power = builder.select(low, builder.fsub(power, _floats(1.0)), power)
    part = builder.fsub(builder.select(low, builder.fadd(part, part), part), _floats(1.0))
    y = _floats(7.0376836292e-2)
    for term in (-1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1):
        y = multiplied(builder, y, part, _floats(term))
    for term in (-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1):
        y = multiplied(builder, y, part, _floats(term))
    square = builder.fmul(part, part)
    y = builder.fmul(builder.fmul(y, part), square)
    y = multiplied(builder, power, _floats(-2.12194440e-4), y)
    y = multiplied(builder, square, _floats(-0.5), y)
    return multiplied(builder, power, _floats(0.693359375), builder.fadd(part, y))


@written(Vector(), types.uint32)
def consecutive(builder, first):
    """Tokens ``first .. first + 16`` as a vector of their bits; any sixteen others are loaded from int32 ids that are
    viewed as float32."""
    ids = builder.add(splatted(builder, first), picked(list(range(LANES))))
    return builder.bitcast(ids, VECTOR)


def _uniform(builder, tokens, one, other):
    """``u`` before it is kept below one."""
    one, other = splatted(builder, one), splatted(builder, other)
    x = builder.add(builder.mul(builder.bitcast(tokens, WORDS), _words(_GOLDEN)), one)
    x = builder.mul(builder.xor(x, builder.lshr(x, _words(16))), _words(_MUL1))
    x = builder.xor(builder.xor(x, builder.lshr(x, _words(15))), other)
    x = builder.mul(x, _words(_MUL2))
    x = builder.lshr(builder.xor(x, builder.lshr(x, _words(16))), _words(1))
    return builder.fmul(builder.fadd(builder.sitofp(x, VECTOR), _floats(0.5)), _floats(2.0**-31))


@written(Vector(), Vector(), types.uint32, types.uint32)
def noise_limit_tile(builder, tokens, one, other):
    """A bound of the noise of tokens (see :func:`consecutive`), for a fraction of its time: less than 0.1
    above it where it is large.

    ``G = -log(-log1p(-u)) <= -log(u)``, and a float's bits, read as a number, are its binary logarithm or less.
    """
    bits = builder.sitofp(builder.bitcast(_uniform(builder, tokens, one, other), WORDS), VECTOR)
    slope, above = -math.log(2) / 2**23, 127 * math.log(2) + 1e-4  # more than all roundings take away
    return multiplied(builder, bits, _floats(slope), _floats(above))


@written(Vector(), Vector(), types.uint32, types.uint32)
def gumbel_tile(builder, tokens, one, other):
    """The noise of tokens (see :func:`consecutive`) at the position of keys ``one`` and ``other``."""
    u = _uniform(builder, tokens, one, other)
    u = builder.select(builder.fcmp_ordered("<", u, _floats(1.0 - 2.0**-24)), u, _floats(1.0 - 2.0**-24))
    rest = builder.fsub(_floats(1.0), u)
    seen = builder.fsub(_floats(1.0), rest)  # 1 - u, in a number near one; what is lost of it is put back
    whole = builder.fcmp_ordered(">", seen, _floats(0.0))
    share = builder.fdiv(u, builder.select(whole, seen, _floats(1.0)))
    falls = builder.fneg(builder.fmul(_logarithm(builder, rest), share))
    falls = builder.select(whole, falls, u)  # -log1p(-u)
    return builder.fneg(_logarithm(builder, falls))
