"""The innermost loop of a product: a few rows by one panel of outputs, whose sums stay in registers.

Written as LLVM's code, because numba knows no arrays of registers: one loop for each number of rows. While a tile is
computed, the weights of a later one are asked for. Without that reading and computing take turns: the processor looks a
few hundred instructions ahead, which are a kilobyte of weights where each is used for eight rows (a prototype of this
tile, 91M, 8 rows: 9.0 ms without, 7.2-7.6 with).
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba.core import types
from numba.extending import intrinsic

from actors.engines.decoder.cpu.formats import BESIDE, PANEL, ROWS, UNPACKED, WIDE, format_of
from actors.engines.decoder.cpu.simd import LANES, LINE, VECTOR, address, asked, for_each, splatted

_INT = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()


@intrinsic
def multiply_tile(
    typing, rows, panels, x, at, size, weights, start, apart, depth, out, to, columns, resume, ahead, step, room
):
    """``out[to + row * columns + o] = sum of x[at + row * size + k] * weight(k, o)`` over k below ``depth``, in order,
    behind what is in ``out`` if ``resume``. ``rows``: up to ``ROWS``. The first panel's weights begin at
    ``weights[start]``, those of each further one, up to ``BESIDE[rows]`` panels, ``apart`` elements behind, in the
    format that :func:`format_of` tells by the arrays' types, of which ``depth`` is whole iterations.

    Meanwhile what lies from the address ``ahead`` on is brought into the cache, ``step`` bytes in each iteration, of
    every panel; and unless ``room`` is None, weights of 12 bits are written into it as pairs of bfloat16.
    """

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        rows, panels, x, at, size, weights, start, apart, depth, out, to, columns, resume, ahead, step, room = arguments
        form = format_of(kinds[2].dtype, kinds[5].dtype)
        first = address(context, builder, kinds[5], weights, _INT(0))
        known = form.before(builder, builder.bitcast(first, _BYTES))
        panel = builder.bitcast(address(context, builder, kinds[5], weights, start), _BYTES)
        between = builder.mul(apart, _INT(kinds[5].dtype.bitwidth // 8))
        fetched = builder.inttoptr(ahead, _BYTES)
        kept = ir.Constant(_BYTES, None)
        if kinds[15] != types.none:
            kept = builder.bitcast(address(context, builder, kinds[15], room, _INT(0)), _BYTES)

        def multiply(count, number):
            inputs, places = [], []
            for row in range(count):
                inputs.append(address(context, builder, kinds[2], x, builder.add(at, builder.mul(size, _INT(row)))))
                begin = builder.add(to, builder.mul(columns, _INT(row)))
                for lane in range(0, number * PANEL, LANES):
                    place = address(context, builder, kinds[9], out, builder.add(begin, _INT(lane)))
                    places.append(builder.bitcast(place, VECTOR.as_pointer()))
            zero = ir.Constant(VECTOR, [0.0] * LANES)
            outputs = [builder.select(resume, builder.load(place, align=4), zero) for place in places]
            before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
            builder.branch(loop)

            builder.position_at_end(loop)
            k, place, line, keep = builder.phi(_INT), *(builder.phi(_BYTES) for _ in range(3))
            sums = [builder.phi(VECTOR) for _ in places]
            grown = list(sums)
            for panel_beside in range(number):
                away = builder.mul(between, _INT(panel_beside))
                for byte in range(0, form.size, LINE):
                    asked(builder, builder.gep(line, [builder.add(away, _INT(byte))]))
                left = None if kinds[15] == types.none else keep
                for element, vectors in enumerate(form.read(builder, builder.gep(place, [away]), known, left)):
                    for row, numbers in enumerate(inputs):
                        value = splatted(builder, builder.load(builder.gep(numbers, [builder.add(k, _INT(element))])))
                        for part, vector in enumerate(vectors):
                            index = (row * number + panel_beside) * WIDE + part
                            grown[index] = form.multiply(builder, value, vector, grown[index])
            following = builder.add(k, _INT(form.inputs))
            further = [
                builder.gep(at, [by]) for at, by in ((place, _INT(form.size)), (line, step), (keep, _INT(UNPACKED)))
            ]
            initial = [_INT(0), panel, fetched, kept, *outputs]
            for phi, begin, again in zip(
                [k, place, line, keep, *sums], initial, [following, *further, *grown], strict=True
            ):
                phi.add_incoming(begin, before)
                phi.add_incoming(again, loop)
            builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)

            builder.position_at_end(after)
            for place, value in zip(places, grown, strict=True):
                builder.store(value, place, align=4)

        def of(count):
            for_each(builder, panels, BESIDE[count], lambda number: multiply(count, number))

        for_each(builder, rows, ROWS, of)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, x, i, i, weights, i, i, i, out, i, i, types.boolean, i, i, room), generate
