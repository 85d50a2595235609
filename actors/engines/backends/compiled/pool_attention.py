"""Attention of all rows of a round in one call, over the slots that each row sees; in pieces that threads share.

A row's sums run over its own slots in their order, in blocks that begin at the first, so its bits depend on nothing
else. Rows of one request take turns block by block: they find its keys and values in the cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from actors.engines.backends.compiled.attention_tiles import VECTORS, fetch_rows, mix_values, score_keys
from actors.engines.backends.compiled.simd import (
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
def _soften(scores, start, count, scale):
    """``scores[start : start + count]`` become weights whose sum is one; those that fill up weigh nothing."""
    end = start + _filled(count)
    for i in range(start + count, end):
        scores[i] = _NOTHING
    top = splat(_NOTHING)
    for i in range(start, end, LANES):
        top = larger(load(scores, i), top)
    zero, factor = splat(_ZERO), splat(scale)
    least = splat(-highest(top) * scale)
    for i in range(start, end, LANES):
        store(scores, i, exponential(fma(load(scores, i), factor, least)))
    for i in range(start + count, end):
        scores[i] = _ZERO
    sums = zero
    for i in range(start, end, LANES):
        sums = add(sums, load(scores, i))
    part = splat(_ONE / total(sums))
    for i in range(start, end, LANES):
        store(scores, i, fma(load(scores, i), part, zero))


@njit(error_model="numpy")
def _attend_head(
    queries, columns, keys, values, sees, room, counts, first, end, width, group, scale, scores, out, apart
):
    """Rows ``first .. end`` of one request and the ``group`` heads that share these keys and values. ``queries`` and
    ``out`` begin with the first of them; their rows are ``columns`` and ``apart`` numbers apart."""
    longest = 0
    for row in range(first, end):
        longest = max(longest, counts[row])
    for block in range(0, longest, BLOCK):
        for row in range(first, end):
            for at in range(block, min(block + BLOCK, counts[row]), LANES):
                slot = row * room + at
                if row == first and at + BLOCK < counts[row]:
                    fetch_rows(keys, sees, slot + BLOCK, width)
                for head in range(group):
                    query = ((row - first) * group + head) * room
                    score_keys(queries, row * columns + head * width, keys, sees, slot, width, scores, query + at)
    for at in range(0, min(BLOCK, counts[first]), LANES):
        fetch_rows(values, sees, first * room + at, width)
    for row in range(first, end):
        for head in range(group):
            _soften(scores, ((row - first) * group + head) * room, counts[row], scale)
    for block in range(0, longest, BLOCK):
        for row in range(first, end):
            count = min(BLOCK, _filled(counts[row]) - block)
            if row == first:
                for at in range(block + BLOCK, min(block + 2 * BLOCK, counts[row]), LANES):
                    fetch_rows(values, sees, row * room + at, width)
            for head in range(group if count > 0 else 0):
                weights = ((row - first) * group + head) * room + block
                for j in range(0, width, VECTORS * LANES):
                    vectors, to = min(VECTORS, (width - j) // LANES), row * apart + head * width + j
                    slot = row * room + block
                    mix_values(vectors, scores, weights, values, sees, slot, count, width, j, out, to, block > 0)


@njit(error_model="numpy")
def attend_piece(piece, queries, columns, keys, values, heads, sees, room, counts, ends, width, scores, out, apart):
    """Softmax attention over the slots ``sees[row * room :][: counts[row]]``, which are filled up to whole vectors, for
    the rows of one request, which end at ``ends``, and the query heads that share one of ``heads`` keys: piece
    ``request * heads + head``. ``scores``: ``room`` for each of those heads and rows."""
    request, head = piece // heads, piece % heads
    group, slots = apart // width // heads, len(keys) // heads
    start, first = head * group * width, ends[request - 1] if request else 0
    own_keys, own_values = keys[head * slots : (head + 1) * slots], values[head * slots : (head + 1) * slots]
    scale = np.float32(1 / np.sqrt(width))
    _attend_head(
        queries[start:],
        columns,
        own_keys,
        own_values,
        sees,
        room,
        counts,
        first,
        ends[request],
        width,
        group,
        scale,
        scores,
        out[start:],
        apart,
    )
