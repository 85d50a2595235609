"""The innermost loop of a product: a few rows by one panel of outputs, with sums in registers.

Written as LLVM's code, because numba knows no arrays of registers: one loop for each number of rows. While a tile is
computed, the weights of a later one are asked for. Without that reading and computing take turns: the processor sees a
few hundred instructions ahead: a kilobyte of weights, if each is used for eight rows (a prototype of this tile, 91M, 8
rows: 9.0 ms without, 7.2-7.6 with).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import llvmlite.ir as ir
from numba.core import types
from numba.extending import intrinsic

from actors.engines.decoder.cpu.pairs import FEATURES, parted, summed
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import (
    LINE,
    VECTOR,
    WORDS,
    Parts,
    asked,
    converted,
    for_each,
    multiplied,
    repeated,
    splatted,
)

# Vectors of a panel, and rows of a tile: their sums, the weights and an input fill the registers, 32 of 16 floats with
# AVX-512, 16 of 8 with AVX2, 32 of 4 elsewhere.
WIDE, ROWS = (3, 8) if "+avx512f" in FEATURES else (1, 6)
# Panels multiplied at once, by the number of rows. A sum waits four cycles for its last addition and two are made in a
# cycle: few rows of a narrow panel have too few sums. With AVX2 one row takes 0.7 of the time where the caches hold the
# weights, and 0.85 where they do not.
BESIDE = (1, 4, 2, 2, 1, 1, 1) if WIDE == 1 else (1,) * (1 + ROWS)
# Interleaved outputs: (outputs / WIDE_PANEL, inputs, WIDE_PANEL)
WIDE_PANEL = WIDE * LANES
_INT = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()


class InputRows(NamedTuple):
    """``count`` rows of ``size`` numbers, the first of which are at ``x[at]``."""

    x: Any
    at: Any
    size: Any
    count: Any


class TileWeights(NamedTuple):
    """Weights of ``panels`` panels, ``apart`` elements from each other, the first at ``weights[start]``,
    each of ``depth`` inputs."""

    weights: Any
    start: Any
    apart: Any
    panels: Any
    depth: Any


class Sums(NamedTuple):
    """Rows of outputs, ``columns`` numbers apart, from ``out[to]`` on; ``resume``: sums are added to it."""

    out: Any
    to: Any
    columns: Any
    resume: Any


class Meanwhile(NamedTuple):
    """``step`` bytes from ``address`` on are brought into the cache in each iteration, of every panel."""

    address: Any
    step: Any


class Numbers:
    """Inputs in float32; weights in float32, or the bits of float16 in uint16."""

    inputs = 1  # elements of a row that an iteration takes

    def __init__(self, kind):
        self._kind, self.size = kind, WIDE_PANEL * kind.bitwidth // 8  # bytes of weights that an iteration takes

    def read(self, builder, place):
        """A panel's vectors for each element, from a pointer on."""
        return [[converted(builder, self._kind, start) for start in self._starts(builder, place)]]

    def _starts(self, builder, place):
        step = self.size // WIDE
        return [builder.gep(place, [_INT(step * part)]) for part in range(WIDE)]

    def multiply(self, builder, x, weights, sums):
        return multiplied(builder, x, weights, sums)


class Pairs(Numbers):
    """Pairs of bfloat16, of two inputs in a row each, in uint32; inputs, too."""

    def read(self, builder, place):
        words = WORDS.as_pointer()
        return [[builder.load(builder.bitcast(at, words), align=1) for at in self._starts(builder, place)]]

    def multiply(self, builder, x, weights, sums):
        """``sums`` and in each lane the products of two pairs."""
        return summed(builder, sums, x, weights)


class PartedPairs(Pairs):
    """Pairs of bfloat16 for inputs in float32."""

    inputs = 2
    multiply = Numbers.multiply

    def read(self, builder, place):
        pairs = [parted(builder, words) for words in super().read(builder, place)[0]]
        return [list(numbers) for numbers in zip(*pairs, strict=True)]


def format_of(inputs, weights):
    """How weights are read, by the types of both."""
    if weights == types.uint32:
        return Pairs(weights) if inputs == types.uint32 else PartedPairs(weights)
    return Numbers(weights)


@intrinsic
def multiply_tile(typing, inputs, weights, sums, meanwhile):
    """``out[to + row * columns + o] = sum of x[at + row * size + k] * weight(k, o)`` over k below ``depth``, in order.

    There are up to ``ROWS`` rows and ``BESIDE[rows]`` panels, in the format that :func:`format_of` tells by the arrays'
    types, of which ``depth`` is whole iterations."""

    def generate(context, builder, signature, arguments):
        given = zip(signature.args, arguments, strict=True)
        _Tile(builder, *(Parts(context, builder, kind, value) for kind, value in given)).write()
        return context.get_dummy_value()

    return types.void(inputs, weights, sums, meanwhile), generate


class _Tile:
    """The code of :func:`multiply_tile`."""

    def __init__(self, builder, inputs, weights, sums, meanwhile):
        self._builder, self._inputs, self._weights, self._sums = builder, inputs, weights, sums
        kind = weights.kinds["weights"].dtype
        self._form = format_of(inputs.kinds["x"].dtype, kind)
        self._panel = builder.bitcast(weights.place("weights", weights["start"]), _BYTES)
        self._between = builder.mul(weights["apart"], _INT(kind.bitwidth // 8))
        self._fetched, self._step = builder.inttoptr(meanwhile["address"], _BYTES), meanwhile["step"]

    def write(self):
        builder, panels = self._builder, self._weights["panels"]

        def of(rows):
            for_each(builder, panels, BESIDE[rows], lambda number: self._multiply(rows, number))

        for_each(builder, self._inputs["count"], ROWS, of)

    def _multiply(self, count, number):
        """``count`` rows by ``number`` panels."""
        builder, inputs, sums, form = self._builder, self._inputs, self._sums, self._form
        starts = [builder.add(inputs["at"], builder.mul(inputs["size"], _INT(row))) for row in range(count)]
        rows, places = [inputs.place("x", start) for start in starts], []
        for row in range(count):
            begin = builder.add(sums["to"], builder.mul(sums["columns"], _INT(row)))
            for lane in range(0, number * WIDE_PANEL, LANES):
                place = sums.place("out", builder.add(begin, _INT(lane)))
                places.append(builder.bitcast(place, VECTOR.as_pointer()))
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        outputs = [builder.select(sums["resume"], builder.load(place, align=4), zero) for place in places]

        def grow(k, state):
            place, line, *grown = state
            for beside in range(number):
                away = builder.mul(self._between, _INT(beside))
                for byte in range(0, form.size, LINE):
                    asked(builder, builder.gep(line, [builder.add(away, _INT(byte))]))
                for element, vectors in enumerate(form.read(builder, builder.gep(place, [away]))):
                    for row, numbers in enumerate(rows):
                        value = splatted(builder, builder.load(builder.gep(numbers, [builder.add(k, _INT(element))])))
                        for part, vector in enumerate(vectors):
                            index = (row * number + beside) * WIDE + part
                            grown[index] = form.multiply(builder, value, vector, grown[index])
            return [builder.gep(place, [_INT(form.size)]), builder.gep(line, [self._step]), *grown]

        begins = [self._panel, self._fetched, *outputs]
        grown = repeated(builder, form.inputs, self._weights["depth"], begins, grow)[2:]
        for place, value in zip(places, grown, strict=True):
            builder.store(value, place, align=4)
