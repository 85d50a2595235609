"""Attention of all rows of a round in one call, over the slots that each row sees; in pieces that threads share.

A row's sums run over its own slots in their order, so its bits depend on nothing else. Queries of one request take
turns block by block: they find its keys and values in the cache. Where several of them see the same slots, which is all
of a text but for a window's own, they share what it takes to read those.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from actors.engines.decoder.cpu.attention_formats import SCORED
from actors.engines.decoder.cpu.attention_tiles import (
    MIXED,
    VECTORS,
    fetch_rows,
    hand_over,
    mix_values,
    pack,
    score_keys,
)
from actors.engines.decoder.cpu.between import cap
from actors.engines.decoder.cpu.simd import (
    LANES,
    add,
    exponential,
    fma,
    highest,
    larger,
    load,
    splat,
    store,
    total,
)

BLOCK = 4 * LANES  # slots: their keys in a head of 64 are 16 KiB, which the first cache holds
_ZERO, _ONE = np.float32(0), np.float32(1)
_NOTHING = np.float32(-np.inf)


@njit(error_model="numpy")
def _filled(count):
    """``count`` slots and what fills the last vector up."""
    return (count + LANES - 1) // LANES * LANES


@njit(error_model="numpy")
def _soften(scores, start, count, skipped, scale, most, sink, values):
    """``scores[start : start + count]`` become weights whose sum is one, or, with a ``sink`` above -inf, less than one.
    The first ``skipped`` and those that fill up weigh nothing. ``most``: scores are capped, see ``cap``; 0: not."""
    end = start + _filled(count)
    if most != _ZERO:
        cap(scores, start, end, scale, most)
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
        pack(scores, start, i - start, fma(load(scores, i), part, zero), values)


@njit(error_model="numpy")
def shared_slots(sees, room, counts, first, end, shares):
    """For each row of one request from how many slots on the next sees others; for the last, all of its own."""
    for row in range(first, end):
        count = counts[row]
        if row + 1 < end:
            most, count = min(count, counts[row + 1]), 0
            while count < most and sees[row * room + count] == sees[(row + 1) * room + count]:
                count += 1
        shares[row] = count


@njit(error_model="numpy")
def _together(counts, shares, row, last):
    """How many slots the rows ``row .. last`` see in common from their first on, in whole vectors; what fills up counts
    where it is one row."""
    common = _filled(counts[row])
    for other in range(row, last):
        common = min(common, shares[other])
    return common // LANES * LANES


@njit(error_model="numpy")
def _fetch_ahead(array, sees, start, count, at, end, then, then_start, then_count, width):
    """Slots ``at .. end`` of a row are about to be read, whose ``count`` slots begin at ``sees[start]``: ask for those
    a block further on and, as far as there are none, for the first ones of what is read ``then``."""
    last = _filled(count)
    for slot in range(at, min(end, last), LANES):
        ahead = slot + BLOCK
        following = slot + min(BLOCK, last) - last
        if ahead < last:
            fetch_rows(array, sees, start + ahead, width)
        elif following < then_count:
            fetch_rows(then, sees, then_start + following, width)


@njit(error_model="numpy")
def _score(number, group, first, longest, packed, keys, values, sees, room, counts, shares, width, turned, scores):
    """``number`` queries' products with the keys that they see. ``values`` are read next."""
    start, own = first * room, counts[first]
    for block in range(0, longest, BLOCK):
        end = block + BLOCK
        for one in range(0, number, SCORED):
            count = min(SCORED, number - one)
            row, last = first + one // group, first + (one + count - 1) // group
            common = min(end, _together(counts, shares, row, last))
            for at in range(block, common, LANES):
                if one == 0:
                    _fetch_ahead(keys, sees, start, own, at, at + LANES, values, start, own, width)
                to = one * room + at
                score_keys(count, scores, packed + one * width, keys, sees, row * room + at, width, to, room, turned)
            for alone in range(one, one + count if common < end else one):
                row = first + alone // group
                for at in range(max(block, common), min(end, counts[row]), LANES):
                    to = alone * room + at
                    score_keys(1, scores, packed + alone * width, keys, sees, row * room + at, width, to, room, turned)


@njit(error_model="numpy")
def _mix(
    number, group, first, longest, mixed, values, then, then_start, then_own, sees, room, counts, shares, width, scores
):
    """``number`` queries' sums over the values that they see. ``then`` are read next, of ``then_own`` slots that begin
    at ``sees[then_start]``."""
    start, own = first * room, counts[first]
    # few queries are through with a value before the next has come, of more each block is read by one after another
    step = LANES if number <= MIXED else BLOCK
    for block in range(0, longest, BLOCK):
        end = block + BLOCK
        for one in range(0, number, MIXED):
            count = min(MIXED, number - one)
            row, last = first + one // group, first + (one + count - 1) // group
            common = min(end, _together(counts, shares, row, last))
            for at in range(block, common, step):
                to = min(at + step, common)
                if one == 0:
                    _fetch_ahead(values, sees, start, own, at, to, then, then_start, then_own, width)
                _add_values(count, one, row, at, to, mixed, values, sees, room, width, scores)
            for alone in range(one, one + count if common < end else one):
                row = first + alone // group
                to = min(end, _filled(counts[row]))
                _add_values(1, alone, row, max(block, common), to, mixed, values, sees, room, width, scores)


@njit(error_model="numpy")
def _add_values(count, one, row, begin, end, mixed, values, sees, room, width, scores):
    """Slots ``begin .. end`` of a row, for ``count`` queries from ``one`` on."""
    most = VECTORS[count]
    for j in range(0, width if begin < end else 0, most * LANES):
        vectors, slot, to = min(most, (width - j) // LANES), row * room + begin, mixed + one * width
        mix_values(
            *(count, vectors, scores, one * room, room, begin),
            *(values, sees, slot, end - begin, width, j, to, begin > 0),
        )


@njit(error_model="numpy")
def _place(piece, heads, ends):
    """A piece's request, that one's first row, and the piece's head."""
    request = piece // heads
    return request, (ends[request - 1] if request else 0), piece % heads


@njit(error_model="numpy")
def attend_piece(
    piece,
    coming,
    queries,
    columns,
    keys,
    values,
    heads,
    sees,
    room,
    counts,
    shares,
    ends,
    width,
    scores,
    out,
    apart,
    skips,
    sinks,
    scale,
    most,
):
    """Softmax attention over the slots ``sees[row * room :][: counts[row]]``, which are filled up to whole vectors, for
    the rows of one request, which end at ``ends``, and the query heads that share one of ``heads`` keys: piece
    ``request * heads + head``. ``coming``: the piece that this thread is likely to take next, or a negative number;
    ``shares``: see :func:`shared_slots`; ``scores``: ``room + 2 * width`` numbers for each of those heads and rows, and
    16 * ``width``. ``skips``: how many of its first slots each row does not see all the same; ``sinks``: of each query
    head, or none; ``scale``, ``most``: see ``_soften``."""
    group, slots = apart // width // heads, len(keys) // heads
    request, first, head = _place(piece, heads, ends)
    number = (ends[request] - first) * group
    _, next_first, next_head = _place(max(0, coming), heads, ends)
    next_keys = keys[next_head * slots : (next_head + 1) * slots]
    keys, values = keys[head * slots : (head + 1) * slots], values[head * slots : (head + 1) * slots]
    packed, mixed = number * room, number * (room + width)
    for one in range(number):
        start = (first + one // group) * columns + (head * group + one % group) * width
        for j in range(0, width, LANES):
            pack(scores, packed + one * width, j, load(queries, start + j), keys)
    longest = 0
    for row in range(first, ends[request]):
        longest = max(longest, counts[row])
    turned = number * (room + 2 * width)
    _score(number, group, first, longest, packed, keys, values, sees, room, counts, shares, width, turned, scores)
    for one in range(number):
        row = first + one // group
        sink = sinks[head * group + one % group] if len(sinks) else _NOTHING
        _soften(scores, one * room, counts[row], skips[row], scale, most, sink, values)
    then = (next_keys, next_first * room, counts[next_first] if coming >= 0 else 0)
    _mix(number, group, first, longest, mixed, values, *then, sees, room, counts, shares, width, scores)
    for one in range(number):
        to = (first + one // group) * apart + (head * group + one % group) * width
        for j in range(0, width, 2 * LANES):
            vectors = min(2, (width - j) // LANES)
            hand_over(vectors, scores, mixed + one * width + j, out, to + j, values)
