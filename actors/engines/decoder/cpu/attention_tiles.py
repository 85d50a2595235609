"""The innermost loops of attention: queries' products with sixteen keys, and sums of weighted values.

Written as LLVM's code, like :mod:`actors.engines.decoder.cpu.tile`. Keys and values are read where they lie in
the pool: ``sees`` holds their slots. Up to ``SCORED`` or ``MIXED`` queries that see the same slots share what it takes
to read them; who shares changes no bit. ``scores``, ``packed``, ``weights`` and ``mixed`` are places in ``room``.
"""

from __future__ import annotations

import llvmlite.ir as ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from actors.engines.decoder.cpu.attention_formats import ZERO, form_of, read, write
from actors.engines.decoder.cpu.pairs import FEATURES
from actors.engines.decoder.cpu.simd import LANES, LINE, VECTOR, address, asked, for_each, repeated, splatted

# Vectors of a value that so many queries are mixed with at a time, as the registers hold their sums. Those of one query
# are so many that as many additions are under way.
VECTORS = (4, 4, 4, 4, 4) if "+avx512f" in FEATURES else (4, 4, 2)
MIXED = len(VECTORS) - 1  # queries
STEP = 4  # slots of an iteration
_INT = ir.IntType(64)


@intrinsic
def pack(typing, room, start, at, vector, keys):
    """Sixteen numbers of a query, or weights, from element ``at`` on of those that begin at ``room[start]``, as they
    are multiplied with such keys or values."""

    def generate(context, builder, signature, arguments):
        room, start, at, vector, _ = arguments
        place = address(context, builder, signature.args[0], room, start)
        form_of(signature.args[4].dtype).pack(builder, vector, place, at)
        return context.get_dummy_value()

    i = types.intp
    return types.void(room, i, i, vector, keys), generate


@intrinsic
def score_keys(typing, together, room, packed, keys, sees, first, width, scores, apart, turned):
    """Products of so many packed queries, each ``width`` behind the other, with the keys ``sees[first : first + 16]``:
    at ``scores``, each query's ``apart`` behind the other's. ``turned``: a place of 16 * ``width`` numbers."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        together, room, packed, keys, sees, first, width, scores, apart, turned = arguments
        slots = address(context, builder, kinds[4], sees, first)
        begins = [
            address(context, builder, kinds[3], keys, builder.mul(read(builder, slots, _INT, lane), width))
            for lane in range(LANES)
        ]

        def place(start, apart):
            return lambda n: address(context, builder, kinds[1], room, builder.add(start, builder.mul(apart, n)))

        form_of(kinds[3].dtype).score(
            *(builder, together, place(packed, width), begins, width, place(scores, apart)),
            address(context, builder, kinds[1], room, turned),
        )
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, room, i, keys, sees, i, i, i, i, i), generate


@intrinsic
def mix_values(
    typing, together, vectors, room, weights, apart, at, values, sees, first, count, width, skipped, mixed, resume
):
    """Sums over ``count`` slots, a multiple of ``STEP``, which begin at ``sees[first]``: of 16 * ``vectors`` columns of
    their values, from ``skipped`` on, each by its weight. Of so many queries, whose packed weights stand ``apart``
    numbers from each other, those of these slots from element ``at`` on, and whose sums ``width`` from each other at
    ``mixed``; added to what is there if ``resume``. See :func:`hand_over`."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        together, vectors, room, weights, apart, at = arguments[:6]
        values, sees, first, count, width, skipped, mixed, resume = arguments[6:]
        form, slots = form_of(kinds[6].dtype), address(context, builder, kinds[7], sees, first)

        def of(queries, number):
            factors = _places(context, builder, kinds[2], room, weights, apart, queries)
            targets = _places(context, builder, kinds[2], room, builder.add(mixed, skipped), width, queries)
            known = [
                builder.select(resume, read(builder, target, VECTOR, lane * LANES), ZERO)
                for target in targets
                for lane in range(number)
            ]

            def grow(i, sums):
                grown = list(sums)
                for step in range(0, STEP, form.slots):
                    place = builder.add(i, _INT(step))
                    slots_here = [read(builder, slots, _INT, builder.add(place, _INT(n))) for n in range(form.slots)]
                    begins = [builder.add(builder.mul(slot, width), skipped) for slot in slots_here]
                    rows = [address(context, builder, kinds[6], values, begin) for begin in begins]
                    vectors = form.values(builder, rows, number)
                    for query, factor in enumerate(factors):
                        weight = splatted(builder, form.weight(builder, factor, builder.add(at, place)))
                        for lane, vector in enumerate(vectors):
                            index = query * number + lane
                            grown[index] = form.multiply(builder, grown[index], weight, vector)
                return grown

            grown = repeated(builder, STEP, count, known, grow)
            for index, value in enumerate(grown):
                write(builder, value, targets[index // number], index % number * LANES)

        for_each(
            *(builder, together, MIXED),
            lambda queries: for_each(builder, vectors, VECTORS[queries], lambda number: of(queries, number)),
        )
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, i, room, i, i, i, values, sees, i, i, i, i, i, types.boolean), generate


@intrinsic
def hand_over(typing, vectors, room, mixed, out, to, values):
    """One or two vectors of sums, as :func:`mix_values` has left them, to ``out[to:]`` in the order of the columns."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        vectors, room, mixed, out, to, _ = arguments
        source = address(context, builder, kinds[1], room, mixed)
        target = address(context, builder, kinds[3], out, to)

        def of(number):
            sums = [read(builder, source, VECTOR, lane * LANES) for lane in range(number)]
            for lane, vector in enumerate(form_of(kinds[5].dtype).ordered(builder, sums)):
                write(builder, vector, target, lane * LANES)

        for_each(builder, vectors, 2, of)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, room, i, out, i, values), generate


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
        step = _INT(8 * LINE // kinds[0].dtype.bitwidth)
        for begin in begins:  # row by row: lines in the order of their addresses come twice as fast from memory
            with cgutils.for_range_slice(builder, _INT(0), width, step) as (column, _):
                asked(builder, builder.gep(begin, [column]))
        return context.get_dummy_value()

    i = types.intp
    return types.void(array, sees, i, i), generate


def _places(context, builder, kind, array, start, apart, count):
    """Pointers to ``array[start + n * apart]`` for so many ``n``."""
    starts = [builder.add(start, builder.mul(apart, _INT(n))) for n in range(count)]
    return [address(context, builder, kind, array, start) for start in starts]
