"""The innermost loop of a product: a few rows by one panel of outputs, whose sums stay in registers.

Written as LLVM's code, because numba knows no arrays of registers: one loop for each number of rows. While a tile is
computed, the weights of a later one are asked for. Without that reading and computing take turns: the processor looks a
few hundred instructions ahead, which are a kilobyte of weights where each is used for eight rows (a prototype of this
tile, 91M, 8 rows: 9.0 ms without, 7.2-7.6 with).
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from actors.engines.backends.llama.simd import LANES, LINE, VECTOR, address, asked, loaded, multiplied, splatted

# Vectors of a panel, and rows of a tile: their sums, the weights and an input fill the registers, 32 of 16 floats with
# AVX-512, 16 of 8 with AVX2, 32 of 4 elsewhere. As numba sees the processor, since it keeps code by that on disk.
WIDE, ROWS = (3, 8) if "+avx512f" in cpu_target.target_context.codegen().magic_tuple()[2] else (1, 6)
PANEL = WIDE * LANES  # outputs whose weights lie together: (outputs / PANEL, inputs, PANEL)
_INT = ir.IntType(64)


@intrinsic
def multiply_tile(typing, rows, x, at, size, weights, start, depth, out, to, columns, resume, fetch, share):
    """``out[to + row * columns + o] = sum of x[at + row * size + k] * weights[start + k * PANEL + o]`` over k below
    ``depth``, in order, behind what is in ``out`` if ``resume``. ``rows``: up to ``ROWS``.

    Meanwhile the weights from ``fetch`` on are brought into the cache, a ``1 / share`` of a panel's at each k.
    """

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        rows, x, at, size, weights, start, depth, out, to, columns, resume, fetch, share = arguments
        kind = kinds[4]
        wide = PANEL * kind.dtype.bitwidth // 8  # bytes
        step = builder.sdiv(_INT(wide), share)
        ahead = builder.bitcast(address(context, builder, kind, weights, fetch), ir.IntType(8).as_pointer())
        end = builder.append_basic_block("end")
        cases = builder.switch(rows, end)
        for count in range(1, ROWS + 1):
            before, loop, after = (builder.append_basic_block(name) for name in ("before", "loop", "after"))
            cases.add_case(count, before)
            builder.position_at_end(before)
            inputs, places = [], []
            for row in range(count):
                inputs.append(address(context, builder, kinds[1], x, builder.add(at, builder.mul(size, _INT(row)))))
                first = builder.add(to, builder.mul(columns, _INT(row)))
                for lane in range(0, PANEL, LANES):
                    place = address(context, builder, kinds[7], out, builder.add(first, _INT(lane)))
                    places.append(builder.bitcast(place, VECTOR.as_pointer()))
            zero = ir.Constant(VECTOR, [0.0] * LANES)
            known = [builder.select(resume, builder.load(place, align=4), zero) for place in places]
            builder.branch(loop)

            builder.position_at_end(loop)
            k = builder.phi(_INT)
            sums = [builder.phi(VECTOR) for _ in places]
            for byte in range(0, wide, LINE):
                asked(builder, builder.gep(ahead, [builder.add(builder.mul(k, step), _INT(byte))]))
            first = builder.add(start, builder.mul(k, _INT(PANEL)))
            read = [
                loaded(context, builder, kind, weights, builder.add(first, _INT(lane)))
                for lane in range(0, PANEL, LANES)
            ]
            values = [splatted(builder, builder.load(builder.gep(place, [k]))) for place in inputs]
            pairs = [(value, vector) for value in values for vector in read]
            grown = [multiplied(builder, *pair, part) for pair, part in zip(pairs, sums, strict=True)]
            following = builder.add(k, _INT(1))
            for phi, first, again in zip([k, *sums], [_INT(0), *known], [following, *grown], strict=True):
                phi.add_incoming(first, before)
                phi.add_incoming(again, loop)
            builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)

            builder.position_at_end(after)
            for place, value in zip(places, grown, strict=True):
                builder.store(value, place, align=4)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, x, i, i, weights, i, i, out, i, i, types.boolean, i, i), generate
