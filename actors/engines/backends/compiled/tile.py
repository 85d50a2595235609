"""The innermost loop of a product: a few rows by one panel of outputs, whose sums stay in registers.

Written as LLVM's code, because numba knows no arrays of registers: one loop for each number of rows. While a tile is
computed, the weights of a later one are asked for. Without that reading and computing take turns: the processor looks a
few hundred instructions ahead, which are a kilobyte of weights where each is used for eight rows (a prototype of this
tile, 91M, 8 rows: 9.0 ms without, 7.2-7.6 with).
"""

from __future__ import annotations

import llvmlite.binding
import llvmlite.ir as ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from actors.engines.backends.compiled.simd import (
    LANES,
    LINE,
    VECTOR,
    WORDS,
    address,
    asked,
    loaded,
    multiplied,
    picked,
    splatted,
)

# Vectors of a panel, and rows of a tile: their sums, the weights and an input fill the registers, 32 of 16 floats with
# AVX-512, 16 of 8 with AVX2, 32 of 4 elsewhere. As numba sees the processor, since it keeps code by that on disk.
_features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
WIDE, ROWS = (3, 8) if "+avx512f" in _features else (1, 6)
PANEL = WIDE * LANES  # outputs whose weights lie together: (outputs / PANEL, inputs, PANEL)
_INT = ir.IntType(64)
HAS_BFLOAT16 = "+avx512bf16" in _features  # the processor multiplies pairs of them, twice as many as of float32
if HAS_BFLOAT16:
    llvmlite.binding.initialize_native_asmparser()


def _multiplied_pairs(builder, x, y, z):
    """``z`` and in each lane the products of two pairs of bfloat16."""
    if HAS_BFLOAT16:  # llvmlite has no name for the type that LLVM's own intrinsic takes
        kind = ir.FunctionType(VECTOR, [VECTOR, WORDS, WORDS])
        return builder.call(ir.InlineAsm(kind, "vdpbf16ps $3, $2, $0", "=v,0,v,v", False), [z, x, y])
    for upper in (False, True):
        mask = picked([0xFFFF0000] * LANES)
        one, other = (
            builder.bitcast(builder.and_(w, mask) if upper else builder.shl(w, picked([16] * LANES)), VECTOR)
            for w in (x, y)
        )
        z = multiplied(builder, one, other, z)
    return z


def _words(context, builder, kind, array, at):
    """``array[at : at + 16]`` of uint32."""
    return builder.load(builder.bitcast(address(context, builder, kind, array, at), WORDS.as_pointer()), align=4)


@intrinsic
def multiply_tile(typing, rows, x, at, size, weights, start, depth, out, to, columns, resume, fetch, share):
    """``out[to + row * columns + o] = sum of x[at + row * size + k] * weights[start + k * PANEL + o]`` over k below
    ``depth``, in order, behind what is in ``out`` if ``resume``. ``rows``: up to ``ROWS``. Of uint32, ``x`` and
    ``weights`` are pairs of bfloat16.

    Meanwhile the weights from ``fetch`` on are brought into the cache, a ``1 / share`` of a panel's at each k.
    """

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        rows, x, at, size, weights, start, depth, out, to, columns, resume, fetch, share = arguments
        kind, lanes = kinds[4], range(0, PANEL, LANES)
        part, product = (_words, _multiplied_pairs) if kind.dtype == types.uint32 else (loaded, multiplied)
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
                for lane in lanes:
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
            read = [part(context, builder, kind, weights, builder.add(first, _INT(lane))) for lane in lanes]
            values = [splatted(builder, builder.load(builder.gep(place, [k]))) for place in inputs]
            pairs = [(value, vector) for value in values for vector in read]
            grown = [product(builder, *pair, known) for pair, known in zip(pairs, sums, strict=True)]
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
