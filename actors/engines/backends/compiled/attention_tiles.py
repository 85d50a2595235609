"""The innermost loops of attention: a query's products with sixteen keys, and sums of weighted values.

Written as LLVM's code, like :mod:`actors.engines.backends.compiled.tile`. Keys and values are read where they lie in
the pool: ``sees`` holds their slots.
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba.core import types
from numba.extending import intrinsic

from actors.engines.backends.compiled.simd import (
    LANES,
    LINE,
    VECTOR,
    address,
    asked,
    loaded,
    multiplied,
    picked,
    splatted,
)

VECTORS = 4  # of a value at a time, each in two sums: an addition waits for the one before
_INT = ir.IntType(64)


@intrinsic
def score_keys(typing, query, start, keys, sees, first, width, scores, to):
    """``scores[to : to + 16]``: products of ``query[start : start + width]`` with keys ``sees[first : first + 16]``."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        query, start, keys, sees, first, width, scores, to = arguments
        slots = address(context, builder, kinds[3], sees, first)
        rows = [builder.mul(builder.load(builder.gep(slots, [_INT(lane)])), width) for lane in range(LANES)]
        before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(loop)

        builder.position_at_end(loop)
        j = builder.phi(_INT)
        sums = [builder.phi(VECTOR) for _ in rows]
        part = loaded(context, builder, kinds[0], query, builder.add(start, j))
        read = [loaded(context, builder, kinds[2], keys, builder.add(row, j)) for row in rows]
        grown = [multiplied(builder, part, key, known) for key, known in zip(read, sums, strict=True)]
        following = builder.add(j, _INT(LANES))
        for phi, first, again in zip([j, *sums], [_INT(0), *[_zero()] * LANES], [following, *grown], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(again, loop)
        builder.cbranch(builder.icmp_signed("<", following, width), loop, after)

        builder.position_at_end(after)
        place = address(context, builder, kinds[6], scores, to)
        builder.store(_totals(builder, grown), builder.bitcast(place, VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    i = types.intp
    return types.void(query, i, keys, sees, i, i, scores, i), generate


def _totals(builder, vectors):
    """The sums of sixteen vectors' lanes as one vector: pair by pair, and half by half."""
    vectors = [vectors[lane % 4 * 4 + lane // 4] for lane in range(LANES)]  # so that they end in their order
    for half in (8, 4, 2, 1):
        if half > 2:
            lower = [first + lane for first in range(0, 2 * LANES, 2 * half) for lane in range(half)]
        else:  # within 128 bits, which costs one instruction
            pair = (0, 1) if half == 2 else (0, 2)
            lower = [first + lane for run in range(0, LANES, 4) for first in (run, LANES + run) for lane in pair]
        upper = [lane + half for lane in lower]
        vectors = [
            builder.fadd(builder.shuffle_vector(x, y, picked(lower)), builder.shuffle_vector(x, y, picked(upper)))
            for x, y in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


@intrinsic
def mix_values(typing, vectors, weights, at, values, sees, first, count, width, skipped, out, to, resume):
    """``out[to : to + 16 * vectors]``: of ``count`` values, an even number, from ``skipped`` on, each by its weight;
    added to what is there if ``resume``. ``vectors``: at most ``VECTORS``. Weights begin at ``at``, slots at ``first``.
    """

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        vectors, weights, at, values, sees, first, count, width, skipped, out, to, resume = arguments
        slots = address(context, builder, kinds[4], sees, first)
        factors = address(context, builder, kinds[1], weights, at)
        end = builder.append_basic_block("end")
        cases = builder.switch(vectors, end)
        for number in range(1, VECTORS + 1):
            before, loop, after = (
                builder.append_basic_block(f"{name}{number}") for name in ("before", "loop", "after")
            )
            cases.add_case(number, before)
            builder.position_at_end(before)
            lanes = range(0, number * LANES, LANES)
            targets = [
                builder.bitcast(
                    address(context, builder, kinds[9], out, builder.add(to, _INT(lane))), VECTOR.as_pointer()
                )
                for lane in lanes
            ]
            known = [builder.select(resume, builder.load(target, align=4), _zero()) for target in targets]
            builder.branch(loop)

            builder.position_at_end(loop)
            i = builder.phi(_INT)
            sums = [builder.phi(VECTOR) for _ in range(2 * number)]
            grown: list[ir.Value] = []
            for odd in range(2):
                place = builder.add(i, _INT(odd))
                factor = splatted(builder, builder.load(builder.gep(factors, [place])))
                row = builder.add(builder.mul(builder.load(builder.gep(slots, [place])), width), skipped)
                for lane in lanes:
                    value = loaded(context, builder, kinds[3], values, builder.add(row, _INT(lane)))
                    grown.append(multiplied(builder, factor, value, sums[len(grown)]))
            following = builder.add(i, _INT(2))
            begins = [_INT(0), *known, *[_zero()] * number]
            for phi, begin, again in zip([i, *sums], begins, [following, *grown], strict=True):
                phi.add_incoming(begin, before)
                phi.add_incoming(again, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, after)

            builder.position_at_end(after)
            for target, even, odd in zip(targets, grown, grown[number:], strict=False):
                builder.store(builder.fadd(even, odd), target, align=4)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, weights, i, values, sees, i, i, i, i, out, i, types.boolean), generate


@intrinsic
def fetch_rows(typing, array, sees, first, width):
    """Ask for the rows of sixteen slots ``sees[first : first + 16]``."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        array, sees, first, width = arguments
        slots = address(context, builder, kinds[1], sees, first)
        begins = [
            address(
                context, builder, kinds[0], array, builder.mul(builder.load(builder.gep(slots, [_INT(lane)])), width)
            )
            for lane in range(LANES)
        ]
        before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(loop)
        builder.position_at_end(loop)
        j = builder.phi(_INT)
        for begin in begins:
            asked(builder, builder.gep(begin, [j]))
        following = builder.add(j, _INT(8 * LINE // kinds[0].dtype.bitwidth))
        j.add_incoming(_INT(0), before)
        j.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, width), loop, after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    i = types.intp
    return types.void(array, sees, i, i), generate


def _zero():
    return ir.Constant(VECTOR, [0.0] * LANES)
