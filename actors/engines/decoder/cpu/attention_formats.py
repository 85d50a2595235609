"""How attention computes with keys and values by their type: float32, or bfloat16 with queries and weights rounded to
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.ir as ir
from numba.core import cgutils, types

from actors.engines.decoder.cpu.pairs import FEATURES, parted, rounded
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import VECTOR, WORDS, converted, for_each, multiplied, picked, repeated, splatted

_INT, _WORD = ir.IntType(64), ir.IntType(32)
_EIGHT, _FOUR = ir.VectorType(_WORD, LANES // 2), ir.VectorType(ir.FloatType(), LANES // 4)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)
# Queries that are scored together: of bfloat16 with AVX-512 registers hold two sums of each beside eight words of keys
SCORED = 8
# ... and of float32 with AVX2 two sums of each beside a column of 16 keys
TURNED = 3
COLUMNS = 4  # keys that are turned at once
# Lanes of two vectors that change places, each by one instruction: words, pairs of words, and runs of 128 bits.
_WORD_PAIRS = [at for run in range(0, LANES, 4) for at in (run, LANES + run, run + 1, LANES + run + 1)]
_TWO_PAIRS = [at for run in range(0, LANES, 4) for at in (run, run + 1, LANES + run, LANES + run + 1)]
_RUNS = [run + lane for run in range(0, 2 * LANES, 8) for lane in range(4)]


def read(builder, pointer, kind, at=0):
    """``kind``, from an element on."""
    at = at if isinstance(at, ir.Value) else _INT(at)
    return builder.load(builder.bitcast(builder.gep(pointer, [at]), kind.as_pointer()), align=2)


def write(builder, value, pointer, at=0):
    place = builder.gep(pointer, [at if isinstance(at, ir.Value) else _INT(at)])
    builder.store(value, builder.bitcast(place, value.type.as_pointer()), align=2)


class Scored(NamedTuple):
    """``together`` queries that are scored together. ``query(n)``: a pointer to what :meth:`Floats.pack` wrote of the
    n-th; ``target(n)``: to where its products go."""

    together: Any
    query: Callable[[Any], Any]
    target: Callable[[Any], Any]


class Floats:
    """float32. A query's products with a key are summed up in lanes, and the lanes last."""

    def pack(self, builder, vector, start, at):
        """16 numbers of a query, or weights, from element ``at`` on."""
        write(builder, vector, start, at)

    def score(self, builder, queries, keys, width, room):
        """Products of queries with each of 16 keys. ``room``: a pointer to 16 * ``width`` numbers."""
        with cgutils.for_range(builder, queries.together) as loop:
            write(builder, self._scored(builder, queries.query(loop.index), keys, width), queries.target(loop.index))

    def _scored(self, builder, query, keys, width):
        def grow(j, sums):
            part = read(builder, query, VECTOR, j)
            read_keys = [read(builder, key, VECTOR, j) for key in keys]
            return [multiplied(builder, part, key, known) for key, known in zip(read_keys, sums, strict=True)]

        return _totals(builder, repeated(builder, LANES, width, [ZERO] * len(keys), grow))

    def values(self, builder, row, number):
        """``number`` vectors of a slot's values, by the pointer to them."""
        return [read(builder, row, VECTOR, vector * LANES) for vector in range(number)]


class TurnedFloats(Floats):
    """float32 where registers are few, 16 of 8 numbers. Keys are turned, so that a lane is a key: into ``room``,
    ``TURNED`` at a time, where several queries share the cost."""

    def score(self, builder, queries, keys, width, room):
        together = queries.together

        def of(count, first, columns):
            """The form of ``count`` queries from ``first`` on. ``columns(j)``: the keys' columns from ``j`` on."""
            numbers = [builder.add(first, _INT(n)) for n in range(count)]
            sums = self._products(builder, [queries.query(number) for number in numbers], columns, width)
            for number, products in zip(numbers, sums, strict=True):
                write(builder, products, queries.target(number))

        def turned(j):
            return _turned_floats(builder, [read(builder, key, _FOUR, j) for key in keys])

        def places(j):
            return [builder.mul(builder.add(j, _INT(at)), _INT(LANES)) for at in range(COLUMNS)]

        def keep(j, _):
            for column, place in zip(turned(j), places(j), strict=True):
                write(builder, column, room, place)
            return []

        def kept(j):
            return [read(builder, room, VECTOR, place) for place in places(j)]

        with builder.if_else(builder.icmp_signed("==", together, _INT(1))) as (alone, several):
            with alone:
                of(1, _INT(0), turned)
            with several:
                repeated(builder, COLUMNS, width, [], keep)
                with cgutils.for_range_slice(builder, _INT(0), together, _INT(TURNED)) as (first, _):
                    left = builder.sub(together, first)
                    most = builder.select(builder.icmp_signed("<", left, _INT(TURNED)), left, _INT(TURNED))
                    for_each(builder, most, TURNED, lambda count: of(count, first, kept))

    def _products(self, builder, queries, columns, width):
        """Even and odd columns have sums of their own: an addition waits for the one before."""

        def grow(j, sums):
            grown = list(sums)
            for at, column in enumerate(columns(j)):
                for number, query in enumerate(queries):
                    index, value = 2 * number + at % 2, builder.load(builder.gep(query, [builder.add(j, _INT(at))]))
                    grown[index] = multiplied(builder, splatted(builder, value), column, grown[index])
            return grown

        sums = repeated(builder, COLUMNS, width, [ZERO] * (2 * len(queries)), grow)
        return [builder.fadd(even, odd) for even, odd in zip(sums[::2], sums[1::2], strict=True)]


class TurnedPairs(Floats):
    """bfloat16. Keys are turned in registers, so that a lane is a key: the queries share the cost."""

    def pack(self, builder, vector, start, at):
        words = builder.shl(builder.zext(rounded(builder, vector), WORDS), picked([16] * LANES))
        write(builder, builder.bitcast(words, VECTOR), start, at)

    def score(self, builder, queries, keys, width, room):
        def of(count):
            packed = [queries.query(_INT(n)) for n in range(count)]
            for n, products in enumerate(self._products(builder, packed, keys, width)):
                write(builder, products, queries.target(_INT(n)))

        for_each(builder, queries.together, SCORED, of)

    def _products(self, builder, queries, keys, width):
        """Even and odd words have sums of their own: an addition waits for the one before."""
        keys = [builder.bitcast(key, _WORD.as_pointer()) for key in keys]

        def grow(j, sums):
            grown = list(sums)
            for at, key_words in enumerate(_turned(builder, [read(builder, key, _EIGHT, j) for key in keys])):
                for odd, numbers in enumerate(parted(builder, key_words)):
                    place = builder.add(builder.shl(j, _INT(1)), _INT(2 * at + odd))
                    for number, query in enumerate(queries):
                        index, value = 2 * number + at % 2, builder.load(builder.gep(query, [place]))
                        grown[index] = multiplied(builder, splatted(builder, value), numbers, grown[index])
            return grown

        words = builder.lshr(width, _INT(1))
        sums = repeated(builder, LANES // 2, words, [ZERO] * (2 * len(queries)), grow)
        return [builder.fadd(even, odd) for even, odd in zip(sums[::2], sums[1::2], strict=True)]

    def values(self, builder, row, number):
        return [converted(builder, types.int16, builder.gep(row, [_INT(vector * LANES)])) for vector in range(number)]


def form_of(kind):
    """By the type of keys and values."""
    if kind == types.int16:
        return TurnedPairs()
    return Floats() if "+avx512f" in FEATURES else TurnedFloats()


def _turned_floats(builder, keys):
    """``COLUMNS`` numbers of sixteen keys as vectors that have one number of all."""
    rows = []  # the four keys that stand at the same place of a run of 128 bits
    for first in range(4):
        halves = [
            builder.shuffle_vector(keys[at], keys[at + 4], picked(list(range(LANES // 2)))) for at in (first, first + 8)
        ]
        rows.append(builder.shuffle_vector(*halves, picked(list(range(LANES)))))
    for lower in (_WORD_PAIRS, _TWO_PAIRS):
        upper = [lane + 2 for lane in lower]
        pairs = [rows[:2], rows[2:]] if lower is _WORD_PAIRS else [rows[::2], rows[1::2]]
        rows = [builder.shuffle_vector(*pair, picked(lanes)) for pair in pairs for lanes in (lower, upper)]
    return rows


def _turned(builder, keys):
    """The first eight words of sixteen keys as vectors that have one word of all."""
    rows = [*range(4), *range(8, 12)]  # with the fourth after each, so that lanes end in their order
    vectors = [builder.shuffle_vector(keys[row], keys[row + 4], picked(list(range(LANES)))) for row in rows]
    for apart, lower in ((1, _WORD_PAIRS), (2, _TWO_PAIRS), (4, _RUNS)):
        upper = [lane + (2 if apart < 4 else 4) for lane in lower]
        turned = []
        for group in range(0, LANES // 2, 2 * apart):
            first, second = vectors[group:][:apart], vectors[group + apart :][:apart]
            halves = [
                [builder.shuffle_vector(x, y, picked(lanes)) for x, y in zip(first, second, strict=True)]
                for lanes in (lower, upper)
            ]
            # within 128 bits the other half is the next word, between them the fourth from there
            pairs = zip(*halves, strict=True) if apart < 4 else halves
            turned += [vector for pair in pairs for vector in pair]
        vectors = turned
    return vectors


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
