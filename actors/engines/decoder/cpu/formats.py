"""How a panel's weights are stored, and what an iteration of a product reads: vectors of 16 outputs for a few inputs.

The exponent of a bfloat16 says little: nearly all weights of a matrix have one of fifteen (DFloat11, arXiv 2504.11651,
which stores them in Huffman's code). In ``TWELVE`` bits it has four, always, so that a vector is unpacked by a few
instructions, and a forward that waits for its weights reads three quarters of them. Weights of other exponents, one in
thousands, stand beside the matrix (:mod:`actors.engines.weights.twelve_bits`).
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba.core import cgutils, types

from actors.engines.decoder.cpu.pairs import FEATURES, HALVES, parted, summed
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import WORDS, converted, multiplied

# Vectors of a panel, and rows of a tile: their sums, the weights and an input fill the registers, 32 of 16 floats with
# AVX-512, 16 of 8 with AVX2, 32 of 4 elsewhere.
WIDE, ROWS = (3, 8) if "+avx512f" in FEATURES else (1, 6)
# Panels that so many rows are multiplied with at once. A sum waits four cycles for its last addition and two are made
# in a cycle: few rows of a narrow panel have too few sums. With AVX2 one row takes 0.7 of the time where the caches
# hold the weights, and 0.85 where they do not.
BESIDE = (1, 4, 2, 2, 1, 1, 1) if WIDE == 1 else (1,) * (1 + ROWS)
PANEL = WIDE * LANES  # outputs with weights side by side: (outputs / PANEL, inputs, PANEL)
HAS_TWELVE = "+avx512bw" in FEATURES  # it looks 32 numbers of 16 bits up at once

GROUP = 8  # inputs with their weights of 12 bits side by side
TABLE = 64  # bytes before all panels of them: what the 16 codes stand for, in 16 bits each, twice
TWELVE = 12 * PANEL // 8  # bytes of an input's
UNPACKED = 2 * GROUP * PANEL  # bytes of a group in pairs of bfloat16
_BYTES = 4 * LANES  # size of a vector


def _read(builder, place, byte, kind):
    pointer = builder.gep(place, [ir.IntType(64)(byte)])
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)


class Numbers:
    """Inputs in float32; weights in float32, or the bits of float16 in uint16."""

    inputs = 1  # elements of a row that an iteration takes

    def __init__(self, kind):
        self._kind, self.size = kind, PANEL * kind.bitwidth // 8  # bytes of weights that an iteration takes

    def before(self, builder, weights):
        """What is loaded once, given a pointer to all weights."""

    def read(self, builder, place, known, room):
        """A panel's vectors for each element, from a pointer on. ``known``: what is loaded once; ``room``: where
        weights of 12 bits are left in pairs of bfloat16, or None."""
        step = self.size // WIDE
        starts = [builder.gep(place, [ir.IntType(64)(step * part)]) for part in range(WIDE)]
        return [[converted(builder, self._kind, start) for start in starts]]

    def multiply(self, builder, x, weights, sums):
        return multiplied(builder, x, weights, sums)


class Words(Numbers):
    """Several weights of an output in a word of 32 bits each."""

    def read(self, builder, place, known, room):
        return [[_read(builder, place, _BYTES * part, WORDS) for part in range(WIDE)]]


class Pairs(Words):
    """Pairs of bfloat16, of two inputs in a row each, in uint32; inputs, too."""

    def __init__(self):
        super().__init__(types.uint32)

    def multiply(self, builder, x, weights, sums):
        """``sums`` and in each lane the products of two pairs."""
        return summed(builder, sums, x, weights)


class PartedPairs(Pairs):
    """Pairs of bfloat16 for inputs in float32."""

    inputs = 2
    multiply = Numbers.multiply

    def read(self, builder, place, known, room):
        pairs = [parted(builder, words) for words in super().read(builder, place, known, room)[0]]
        return [list(numbers) for numbers in zip(*pairs, strict=True)]


class Twelve(Pairs):
    """Bfloat16 of 12 bits, ``GROUP`` inputs together; inputs are pairs.

    A group has three parts, each of 16 bits for an output and a parity of the input: codes of the exponents of its four
    pairs of inputs; then signs and mantissas of two pairs, of which the second's are turned by eight bits; then those
    of the other two.
    """

    inputs = GROUP // 2

    def __init__(self):
        super().__init__()
        self.size = GROUP * TWELVE

    def before(self, builder, weights):
        return _read(builder, weights, 0, HALVES)

    def read(self, builder, place, known, room):
        parts = [_read(builder, place, _BYTES * part, HALVES) for part in range(3 * WIDE)]
        found = []
        for pair in range(GROUP // 2):
            signs = parts[WIDE * (1 + pair // 2) :][:WIDE]
            found.append([_joined(builder, known, *both, pair) for both in zip(parts[:WIDE], signs, strict=True)])
        if room is not None:
            for index, words in enumerate(word for pairs in found for word in pairs):
                to = builder.gep(room, [ir.IntType(64)(_BYTES * index)])
                builder.store(words, builder.bitcast(to, WORDS.as_pointer()), align=4)
        return found


class PartedTwelve(Twelve):
    """The same for inputs in float32."""

    inputs = GROUP
    multiply = Numbers.multiply

    def read(self, builder, place, known, room):
        numbers: list[tuple[ir.Value, ...]] = []
        for pairs in super().read(builder, place, known, room):
            numbers += zip(*(parted(builder, words) for words in pairs), strict=True)
        return numbers


def _joined(builder, table, codes, bits, pair):
    """Pairs of bfloat16: exponents by their codes, signs and mantissas."""
    shifted = builder.lshr(codes, _halves(4 * pair))
    kind = ir.FunctionType(HALVES, [HALVES] * 2)
    look_up = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.permvar.hi.512")
    exponents = builder.call(look_up, [table, shifted])
    if pair % 2:
        kind = ir.FunctionType(HALVES, [HALVES] * 3)
        turn = cgutils.get_or_insert_function(builder.module, kind, "llvm.fshl.v32i16")
        bits = builder.call(turn, [bits, bits, _halves(8)])
    return builder.bitcast(builder.or_(builder.and_(bits, _halves(0x807F)), exponents), WORDS)


def _halves(number):
    return ir.Constant(HALVES, [number] * 2 * LANES)


def format_of(inputs, weights):
    """By the types of their elements."""
    if weights == types.uint8:
        return Twelve() if inputs == types.uint32 else PartedTwelve()
    if weights == types.uint32:
        return Pairs() if inputs == types.uint32 else PartedPairs()
    return Numbers(weights)
