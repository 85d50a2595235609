"""The innermost loop of a product: a few rows by one panel of outputs, with sums in registers.

Written as LLVM's code, because numba knows no arrays of registers: one loop for each number of rows. While a tile is
computed, the weights of a later one are asked for. Without that reading and computing take turns: the processor looks a
few hundred instructions ahead, which are a kilobyte of weights where each is used for eight rows (a prototype of this
tile, 91M, 8 rows: 9.0 ms without, 7.2-7.6 with).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import llvmlite.ir as ir
from numba.core import types
from numba.extending import intrinsic

from actors.engines.decoder.cpu.formats import BESIDE, PANEL, ROWS, UNPACKED, WIDE, format_of
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import LINE, VECTOR, Parts, asked, for_each, repeated, splatted

_INT = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()


class InputRows(NamedTuple):
    """``count`` rows of ``size`` numbers, the first of which are at ``x[at]``."""

    x: Any
    at: Any
    size: Any
    count: Any


class TileWeights(NamedTuple):
    """Weights of ``panels`` panels, ``apart`` elements from each other, the first at ``weights[start]``, each
    of ``depth`` inputs."""

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
    """``step`` bytes from ``address`` on are brought into the cache in each iteration, of every panel. Weights of 12
    bits are written into ``room`` as pairs of bfloat16, unless that is None."""

    address: Any
    step: Any
    room: Any


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
        self._known = self._form.before(builder, builder.bitcast(weights.place("weights", _INT(0)), _BYTES))
        self._panel = builder.bitcast(weights.place("weights", weights["start"]), _BYTES)
        self._between = builder.mul(weights["apart"], _INT(kind.bitwidth // 8))
        self._fetched, self._step = builder.inttoptr(meanwhile["address"], _BYTES), meanwhile["step"]
        self._keeps, self._kept = meanwhile.kinds["room"] != types.none, ir.Constant(_BYTES, None)
        if self._keeps:
            self._kept = builder.bitcast(meanwhile.place("room", _INT(0)), _BYTES)

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
            for lane in range(0, number * PANEL, LANES):
                place = sums.place("out", builder.add(begin, _INT(lane)))
                places.append(builder.bitcast(place, VECTOR.as_pointer()))
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        outputs = [builder.select(sums["resume"], builder.load(place, align=4), zero) for place in places]

        def grow(k, state):
            place, line, keep, *grown = state
            for beside in range(number):
                away = builder.mul(self._between, _INT(beside))
                for byte in range(0, form.size, LINE):
                    asked(builder, builder.gep(line, [builder.add(away, _INT(byte))]))
                here, room = builder.gep(place, [away]), keep if self._keeps else None
                for element, vectors in enumerate(form.read(builder, here, self._known, room)):
                    for row, numbers in enumerate(rows):
                        value = splatted(builder, builder.load(builder.gep(numbers, [builder.add(k, _INT(element))])))
                        for part, vector in enumerate(vectors):
                            index = (row * number + beside) * WIDE + part
                            grown[index] = form.multiply(builder, value, vector, grown[index])
            moved = ((place, _INT(form.size)), (line, self._step), (keep, _INT(UNPACKED)))
            return [*(builder.gep(at, [by]) for at, by in moved), *grown]

        begins = [self._panel, self._fetched, self._kept, *outputs]
        grown = repeated(builder, form.inputs, self._weights["depth"], begins, grow)[3:]
        for place, value in zip(places, grown, strict=True):
            builder.store(value, place, align=4)
