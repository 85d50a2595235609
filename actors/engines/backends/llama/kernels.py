"""A forward of few rows in float32, compiled by numba in one piece (the extra ``duoactor[jit]``).

A row's sums run over the slots that it sees, in their order, and over nothing else: so its bits depend neither on the
rows beside it, nor on the span, nor on where in the pool a branch of a window lies (DESIGN section 3). All is compiled
when this module is imported, once per machine: numba keeps it on disk. It needs sizes that are multiples of ``LANES``.
"""

from __future__ import annotations

import numpy as np
from numba import from_dtype, njit, types

from actors.engines.backends.llama.atomics import array_at
from actors.engines.backends.llama.between import add_and_norm, gated, norm, turn_and_store
from actors.engines.backends.llama.likeliest import largest, rank_rows
from actors.engines.backends.llama.simd import LANES
from actors.engines.backends.llama.team import JOB, Team, perform, product
from actors.engines.backends.llama.tile import PANEL

__all__ = ["JOB", "LANES", "LAYER", "PANEL", "Team", "product", "rank_rows", "run_layers"]

# Of a layer what is not a product, by address: ``inputs`` and ``inner`` are the norms before its two halves (which hold
# the scale of the product behind them), ``heads`` the norms of queries and keys, or 0
LAYER = np.dtype(
    [(name, np.int64) for name in ("inputs", "heads", "inner", "keys", "values")]
    + [(name, np.float32) for name in ("out_scale", "down_scale")]
)
_kept = {"cache": True, "nogil": True, "error_model": "numpy"}
_layers, _jobs = types.Array(from_dtype(LAYER), 1, "C"), types.Array(from_dtype(JOB), 1, "C")
_floats, _table = types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")
_ints, _i = types.Array(types.int64, 1, "C"), types.int64


@njit(error_model="numpy")
def _collect(segments, visible, places, counts):
    """The slots that each row sees, in order, and how many they are. The last one is repeated up to a whole vector."""
    row = at = 0
    for segment in range(len(segments)):
        rows, base, span = segments[segment]
        for _ in range(rows):
            count = 0
            for slot in range(span):
                if visible[at + slot]:
                    places[row, count] = base + slot
                    count += 1
            counts[row] = count
            for more in range(count, (count + LANES - 1) // LANES * LANES):
                places[row, more] = places[row, count - 1]
            row, at = row + 1, at + span


@njit(error_model="numpy")
def _cut(room, rows, hidden, seen, qkv, narrow, both, inner):
    """Parts of ``room`` of so many numbers a row: of the residual stream, what attention gives and takes, the norms',
    a narrow product's and a wide one's, and the activations."""
    a = rows * hidden
    b = a + rows * seen
    c = b + rows * qkv
    d = c + rows * hidden
    e = d + rows * narrow
    f = e + rows * both
    return room[:a], room[a:b], room[b:c], room[c:d], room[d:e], room[e:f], room[f : f + rows * inner]


@njit(
    types.void(
        *[_layers, _jobs, _ints, types.float32, _table, _table, _ints, _ints, _ints, _ints],
        *[types.Array(types.int64, 2, "C"), types.Array(types.boolean, 1, "C")],
        *[_floats, _table, _ints, _jobs, _jobs, _ints, _i, _i],
    ),
    **_kept,
)
def run_layers(
    layers, jobs, sizes, eps, embedding, turns, tokens, positions, slots, keep,
    segments, visible, room, logits, best, attention, current, state, first, last,
):  # fmt: skip
    """From tokens to ``logits`` of the rows ``keep`` (in ascending order), and the likeliest id of each, ``best``.

    ``layers``: of :data:`LAYER`, the last of which has the norm before the head alone; ``jobs``: q/k/v, out, gate and
    up, down of each, and the head. ``sizes``: heads, heads of keys, width, inner, slots of the pool, ids among which
    the likeliest is looked for, threads. ``turns``: cosine and sine of every pair, by position. ``segments``: rows,
    base and span of each request's; ``visible``: which slots of the span each row sees. ``room``: for what is computed
    in between, see ``_cut``. ``attention``: a job of a layer's.

    From half ``first`` to ``last``: a layer's halves end before and behind its attention, which is left out where the
    range ends with a first half or begins with a second. The head comes behind the last.
    """
    heads, kv_heads, width, inner, pool, ids, threads = sizes
    rows, hidden = len(tokens), embedding.shape[1]
    x, seen, qkv, normed, narrow, both, activated = _cut(
        room, rows, hidden, heads * width, jobs[0].apart, jobs[1].apart, jobs[2].apart, inner
    )
    if first == 0:
        for row in range(rows):
            x[row * hidden : (row + 1) * hidden] = embedding[tokens[row]]
        norm(x, array_at(layers[0].inputs, hidden, np.float32), eps, normed, rows)
    most, span = 0, 1
    for segment in range(len(segments)):
        most, span = max(most, segments[segment, 0]), max(span, segments[segment, 2])
    look = attention[0]
    look.columns, look.apart, look.requests = jobs[0].apart, heads * width, len(segments)
    look.heads, look.slots, look.width = kv_heads, pool, width
    look.room = (span + LANES - 1) // LANES * LANES
    look.own_scores = most * heads // kv_heads * look.room
    places, counts = np.empty((rows, look.room), np.int64), np.empty(rows, np.int64)
    ends, scores = np.cumsum(segments[:, 0]), np.empty(threads * look.own_scores, np.float32)
    look.sees, look.counts, look.ends = places.ctypes.data, counts.ctypes.data, ends.ctypes.data
    look.scores = scores.ctypes.data
    _collect(segments, visible, places, counts)
    for half in range(first, last):
        index = half // 2
        layer = layers[index]
        if half % 2 == 0:
            perform(jobs[4 * index], normed, rows, qkv, current, state)
            keys = array_at(layer.keys, kv_heads * pool * width, np.float32)
            values = array_at(layer.values, kv_heads * pool * width, np.float32)
            turn_and_store(
                qkv, jobs[0].apart, turns, positions, layer.heads, eps, heads, kv_heads, keys, values, pool, slots
            )
            if half + 1 < last:
                look.keys, look.values = layer.keys, layer.values
                perform(look, qkv, rows, seen, current, state)
        else:
            perform(jobs[4 * index + 1], seen, rows, narrow, current, state)
            weight = array_at(layer.inner, hidden, np.float32)
            add_and_norm(x, narrow, jobs[1].apart, layer.out_scale, weight, eps, normed, rows)
            perform(jobs[4 * index + 2], normed, rows, both, current, state)
            gated(both, jobs[2].apart, activated, rows, inner)
            perform(jobs[4 * index + 3], activated, rows, narrow, current, state)
            weight = array_at(layers[index + 1].inputs, hidden, np.float32)
            add_and_norm(x, narrow, jobs[3].apart, layer.down_scale, weight, eps, normed, rows)
    if last == 2 * (len(layers) - 1):
        for at in range(len(keep)):
            if keep[at] != at:
                normed[at * hidden : (at + 1) * hidden] = normed[keep[at] * hidden : (keep[at] + 1) * hidden]
        perform(jobs[len(jobs) - 1], normed, len(keep), logits.reshape(-1), current, state)
        value = np.empty(1, np.float32)
        for at in range(len(keep)):
            largest(logits[at, :ids], best[at : at + 1], value)
