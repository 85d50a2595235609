"""The innermost loops of attention: queries' products with sixteen keys, and sums of weighted values.

Written as LLVM's code, like :mod:`actors.engines.decoder.cpu.tile`. Keys and values are read where they lie in the
pool: ``sees`` holds their slots. Up to ``SCORED`` or ``MIXED`` queries that see the same slots share the reads; sharing
changes no bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import llvmlite.ir as ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from actors.engines.decoder.cpu.attention_formats import ZERO, Scored, form_of, read, write
from actors.engines.decoder.cpu.pairs import FEATURES
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import (
    LINE,
    VECTOR,
    Parts,
    address,
    asked,
    for_each,
    multiplied,
    repeated,
    splatted,
)

# Vectors of a value to mix with a number of queries at a time, as the registers hold their sums. One query has as many
# vectors as additions are in flight.
VECTORS = (4, 4, 4, 4, 4) if "+avx512f" in FEATURES else (4, 4, 2)
MIXED = len(VECTORS) - 1  # queries
STEP = 4  # slots of an iteration
_INT = ir.IntType(64)


@intrinsic
def pack(typing, room, start, at, vector, keys):
    """Sixteen numbers of a query, or weights, from element ``at`` after ``room[start]``, in the form to multiply with
    these keys or values."""

    def generate(context, builder, signature, arguments):
        room, start, at, vector, _ = arguments
        place = address(context, builder, signature.args[0], room, start)
        form_of(signature.args[4].dtype).pack(builder, vector, place, at)
        return context.get_dummy_value()

    i = types.intp
    return types.void(room, i, i, vector, keys), generate


class SeenSlots(NamedTuple):
    """The slots ``sees[first : first + count]``."""

    sees: Any
    first: Any
    count: Any


class ScorePlaces(NamedTuple):
    """Places in ``room``: ``packed`` is where the queries begin, one after the other without a gap; ``scores`` is where
    their scores begin, those of two queries ``apart`` numbers from each other; ``turned`` has 16 * width numbers."""

    room: Any
    packed: Any
    scores: Any
    apart: Any
    turned: Any


class MixPlaces(NamedTuple):
    """Places in ``room``: ``weights`` is where packed weights begin, those of two queries ``apart`` numbers from each
    other, and the first ``at`` of each query do not count; ``mixed`` is where sums are written, or with ``resume``
    added to."""

    room: Any
    weights: Any
    apart: Any
    at: Any
    mixed: Any
    resume: Any


class MixedColumns(NamedTuple):
    """16 * ``vectors`` columns, from ``skipped`` on, of ``width``."""

    width: Any
    skipped: Any
    vectors: Any


@intrinsic
def score_keys(typing, together, places, keys, slots, width):
    """Products of packed queries with the keys of sixteen slots."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        together, _, keys, _, width = arguments
        places, slots = Parts(context, builder, kinds[1], arguments[1]), Parts(context, builder, kinds[3], arguments[3])
        first = slots.place("sees", slots["first"])
        begins = [
            address(context, builder, kinds[2], keys, builder.mul(read(builder, first, _INT, lane), width), count=LANES)
            for lane in range(LANES)
        ]

        def place(start, apart):
            return lambda n: places.place("room", builder.add(start, builder.mul(apart, n)))

        queries = Scored(together, place(places["packed"], width), place(places["scores"], places["apart"]))
        form_of(kinds[2].dtype).score(builder, queries, begins, width, places.place("room", places["turned"]))
        return context.get_dummy_value()

    return types.void(types.intp, places, keys, slots, types.intp), generate


@intrinsic
def mix_values(typing, together, places, values, slots, columns):
    """Weighted sums of value columns over ``slots``, a multiple of ``STEP``, for ``together`` queries."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        places, slots, columns = (Parts(context, builder, kinds[n], arguments[n]) for n in (1, 3, 4))
        form, first = form_of(kinds[2].dtype), slots.place("sees", slots["first"])
        width, skipped, at = columns["width"], columns["skipped"], places["at"]

        def starts(start, apart, count):
            """Pointers to the numbers of several queries."""
            return [places.place("room", builder.add(start, builder.mul(apart, _INT(n)))) for n in range(count)]

        def of(queries, number):
            factors = starts(places["weights"], places["apart"], queries)
            targets = starts(builder.add(places["mixed"], skipped), width, queries)
            known = [
                builder.select(places["resume"], read(builder, target, VECTOR, lane * LANES), ZERO)
                for target in targets
                for lane in range(number)
            ]

            def grow(i, sums):
                grown = list(sums)
                for step in range(STEP):
                    place = builder.add(i, _INT(step))
                    begin = builder.add(builder.mul(read(builder, first, _INT, place), width), skipped)
                    vectors = form.values(
                        builder, address(context, builder, kinds[2], arguments[2], begin, count=LANES), number
                    )
                    for query, factor in enumerate(factors):
                        weight = splatted(builder, builder.load(builder.gep(factor, [builder.add(at, place)])))
                        for lane, vector in enumerate(vectors):
                            index = query * number + lane
                            grown[index] = multiplied(builder, weight, vector, grown[index])
                return grown

            grown = repeated(builder, STEP, slots["count"], known, grow)
            for index, value in enumerate(grown):
                write(builder, value, targets[index // number], index % number * LANES)

        vectors = columns["vectors"]
        for_each(
            *(builder, arguments[0], MIXED),
            lambda queries: for_each(builder, vectors, VECTORS[queries], lambda number: of(queries, number)),
        )
        return context.get_dummy_value()

    return types.void(types.intp, places, values, slots, columns), generate


@intrinsic
def fetch_rows(typing, array, sees, first, width):
    """Ask for the rows of sixteen slots ``sees[first : first + 16]``."""

    def generate(context, builder, signature, arguments):
        kinds = signature.args
        array, sees, first, width = arguments
        slots = address(context, builder, kinds[1], sees, first, count=LANES)
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
