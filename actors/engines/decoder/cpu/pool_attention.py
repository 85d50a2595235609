"""Attention of all rows of a round in one call, over the slots that each row sees; in pieces that threads share.

A row's sums run over its own slots in their order, so its bits depend on nothing else. Queries of one request take
turns block by block: they find its keys and values in the cache. Queries that see the same slots share the reads:
all of a text's slots except the window's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from actors.engines.decoder.cpu.attention_formats import SCORED
from actors.engines.decoder.cpu.attention_tiles import (
    MIXED,
    VECTORS,
    MixedColumns,
    MixPlaces,
    ScorePlaces,
    SeenSlots,
    fetch_rows,
    mix_values,
    pack,
    score_keys,
)
from actors.engines.decoder.cpu.between import cap
from actors.engines.decoder.cpu.linking import linked
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import add, exponential, fma, highest, larger, load, splat, store, total

BLOCK = 4 * LANES  # slots: their keys in a head of 64 are 16 KiB, which the first cache holds
_ZERO, _ONE = np.float32(0), np.float32(1)
_NOTHING = np.float32(-np.inf)


class QueryRows(NamedTuple):
    """Queries, with rows ``columns`` numbers apart, and the sums' destination, with rows ``apart`` numbers apart."""

    queries: Any
    columns: Any
    out: Any
    apart: Any


class Heads(NamedTuple):
    """Keys and values of a layer's ``number`` heads of ``width`` numbers. ``sinks``: one for each query head, or none.
    Scores are multiplied by ``scale``, then capped (see ``cap``; 0: they are not)."""

    keys: Any
    values: Any
    number: Any
    width: Any
    sinks: Any
    scale: Any
    cap: Any


class Sight(NamedTuple):
    """Visible slots of rows: ``sees[row * room :][: counts[row]]``, padded to whole vectors, without the first
    ``skips``. ``shares``: see :func:`shared_slots`; rows of a request end at ``ends``."""

    sees: Any
    room: Any
    counts: Any
    shares: Any
    ends: Any
    skips: Any


class QueryPiece(NamedTuple):
    """``number`` queries, ``group`` of each row from row ``first`` on; the longest sees ``longest`` slots. And the
    places of queries, sums and transposed keys in ``scores``."""

    number: Any
    group: Any
    first: Any
    longest: Any
    width: Any
    packed: Any
    mixed: Any
    turned: Any


class Then(NamedTuple):
    """Rows to prefetch: those of the ``count`` slots from ``sees[start]`` on."""

    array: Any
    start: Any
    count: Any


@linked
def _filled(count):
    """``count`` slots, rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@linked
def _soften(scores, start, count, skipped, heads, sink):
    """Turn ``scores[start : start + count]`` into weights. Their sum is 1, or less with a ``sink`` above -inf. The
    first ``skipped`` and the padding weigh nothing."""
    end, scale = start + _filled(count), heads.scale
    if heads.cap != _ZERO:
        cap(scores, start, end, scale, heads.cap)
        scale = _ONE
    for i in range(start, start + skipped):
        scores[i] = _NOTHING
    for i in range(start + count, end):
        scores[i] = _NOTHING
    top = splat(_NOTHING)
    for i in range(start, end, LANES):
        top = larger(load(scores, i), top)
    zero, factor = splat(_ZERO), splat(scale)
    highest_score = max(highest(top) * scale, sink)
    least = splat(-highest_score)
    for i in range(start, end, LANES):
        store(scores, i, exponential(fma(load(scores, i), factor, least)))
    for i in range(start, start + skipped):
        scores[i] = _ZERO
    for i in range(start + count, end):
        scores[i] = _ZERO
    sums = zero
    for i in range(start, end, LANES):
        sums = add(sums, load(scores, i))
    whole = total(sums)
    if sink > _NOTHING:
        whole += np.float32(np.exp(sink - highest_score))
    part = splat(_ONE / whole)
    for i in range(start, end, LANES):
        pack(scores, start, i - start, fma(load(scores, i), part, zero), heads.values)


@linked
def shared_slots(sees, room, counts, first, end, shares):
    """Count, for each row of a request, the first slots that the next row sees too; for the last row, all its slots."""
    for row in range(first, end):
        count = counts[row]
        if row + 1 < end:
            most, count = min(count, counts[row + 1]), 0
            while count < most and sees[row * room + count] == sees[(row + 1) * room + count]:
                count += 1
        shares[row] = count


@linked
def _together(piece, sight, one, count):
    """Number of first slots that the rows of ``count`` queries from ``one`` on have in common, in whole vectors.
    Padding counts where all queries are of one row."""
    row, last = piece.first + one // piece.group, piece.first + (one + count - 1) // piece.group
    common = _filled(sight.counts[row])
    for other in range(row, last):
        common = min(common, sight.shares[other])
    return common // LANES * LANES


@linked
def _fetch_ahead(array, piece, sight, begin, end, then):
    """Prefetch while slots ``begin .. end`` of the first row are read: the slots a block further on, and after the last
    ones the first slots of ``then``."""
    last, start = _filled(sight.counts[piece.first]), piece.first * sight.room
    for slot in range(begin, min(end, last), LANES):
        ahead = slot + BLOCK
        following = slot + min(BLOCK, last) - last
        if ahead < last:
            fetch_rows(array, sight.sees, start + ahead, piece.width)
        elif following < then.count:
            fetch_rows(then.array, sight.sees, then.start + following, piece.width)


@linked
def _score_slots(queries, at, piece, keys, sight, scores):
    """Multiply ``queries`` (first, number) with the keys of 16 slots from ``at`` on."""
    one, count = queries
    width, room, row = piece.width, sight.room, piece.first + one // piece.group
    places = ScorePlaces(scores, piece.packed + one * width, one * room + at, room, piece.turned)
    score_keys(count, places, keys, SeenSlots(sight.sees, row * room + at, LANES), width)


@linked
def _score(piece, keys, values, sight, scores):
    """Multiply all queries with the keys that they see. ``values`` are read next."""
    then = Then(values, piece.first * sight.room, sight.counts[piece.first])
    for block in range(0, piece.longest, BLOCK):
        end = block + BLOCK
        for one in range(0, piece.number, SCORED):
            count = min(SCORED, piece.number - one)
            common = min(end, _together(piece, sight, one, count))
            for at in range(block, common, LANES):
                if one == 0:
                    _fetch_ahead(keys, piece, sight, at, at + LANES, then)
                _score_slots((one, count), at, piece, keys, sight, scores)
            for alone in range(one, one + count if common < end else one):
                own = sight.counts[piece.first + alone // piece.group]
                for at in range(max(block, common), min(end, own), LANES):
                    _score_slots((alone, 1), at, piece, keys, sight, scores)


@linked
def _mix(piece, values, sight, scores, then):
    """Add up the weighted values that each query sees. ``then``: rows to prefetch."""
    # few queries finish with a value before memory delivers the next; more queries read each block one after another
    step = LANES if piece.number <= MIXED else BLOCK
    for block in range(0, piece.longest, BLOCK):
        end = block + BLOCK
        for one in range(0, piece.number, MIXED):
            count = min(MIXED, piece.number - one)
            common = min(end, _together(piece, sight, one, count))
            for at in range(block, common, step):
                to = min(at + step, common)
                if one == 0:
                    _fetch_ahead(values, piece, sight, at, to, then)
                _add_values((one, count), (at, to), piece, values, sight, scores)
            for alone in range(one, one + count if common < end else one):
                to = min(end, _filled(sight.counts[piece.first + alone // piece.group]))
                _add_values((alone, 1), (max(block, common), to), piece, values, sight, scores)


@linked
def _add_values(queries, slots, piece, values, sight, scores):
    """Add the values of ``slots`` (first, end) for ``queries`` (first, number)."""
    (one, count), (begin, end) = queries, slots
    most, width, room = VECTORS[count], piece.width, sight.room
    places = MixPlaces(scores, one * room, room, begin, piece.mixed + one * width, begin > 0)
    seen = SeenSlots(sight.sees, (piece.first + one // piece.group) * room + begin, end - begin)
    for j in range(0, width if begin < end else 0, most * LANES):
        mix_values(count, places, values, seen, MixedColumns(width, j, min(most, (width - j) // LANES)))


@linked
def _place(piece, heads, ends):
    """A piece's request, the request's first row, and the piece's head."""
    request = piece // heads
    return request, (ends[request - 1] if request else 0), piece % heads


@linked
def _longest(counts, first, end):
    longest = 0
    for row in range(first, end):
        longest = max(longest, counts[row])
    return longest


@linked
def attend_piece(number, coming, rows, heads, sight, scores):
    """Softmax attention of one request's rows and of the query heads that share one of ``heads.number`` keys: piece
    ``request * heads.number + head``. ``coming``: the piece that this thread is likely to take next, or a negative
    number. ``scores``: ``room + 2 * width`` numbers for each head and row, and 16 * ``width``."""
    width, room, apart = heads.width, sight.room, rows.apart
    group, slots = apart // width // heads.number, len(heads.keys) // heads.number
    request, first, head = _place(number, heads.number, sight.ends)
    queries = (sight.ends[request] - first) * group
    _, next_first, next_head = _place(max(0, coming), heads.number, sight.ends)
    keys = heads.keys[head * slots : (head + 1) * slots]
    values = heads.values[head * slots : (head + 1) * slots]
    piece = QueryPiece(
        *(queries, group, first, _longest(sight.counts, first, sight.ends[request]), width),
        *(queries * room, queries * (room + width), queries * (room + 2 * width)),
    )
    for one in range(queries):
        start = (first + one // group) * rows.columns + (head * group + one % group) * width
        for j in range(0, width, LANES):
            pack(scores, piece.packed + one * width, j, load(rows.queries, start + j), keys)
    _score(piece, keys, values, sight, scores)
    for one in range(queries):
        row = first + one // group
        sink = heads.sinks[head * group + one % group] if len(heads.sinks) else _NOTHING
        _soften(scores, one * room, sight.counts[row], sight.skips[row], heads, sink)
    next_keys = heads.keys[next_head * slots : (next_head + 1) * slots]
    then = Then(next_keys, next_first * room, sight.counts[next_first] if coming >= 0 else 0)
    _mix(piece, values, sight, scores, then)
    for one in range(queries):
        to = (first + one // group) * apart + (head * group + one % group) * width
        for j in range(0, width, LANES):
            store(rows.out, to + j, load(scores, piece.mixed + one * width + j))
