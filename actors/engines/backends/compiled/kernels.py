"""A forward of few rows on a CPU, compiled by numba in one piece (the extra ``duoactor[jit]``).

A row's sums run over the slots that it sees, in their order, and over nothing else: so its bits depend neither on the
rows beside it, nor on the span, nor on where in the pool a branch of a window lies (DESIGN section 3). All is compiled
when this module is imported, once per machine: numba keeps it on disk. It needs sizes that are multiples of ``LANES``.
"""

from __future__ import annotations

import numpy as np
from numba import from_dtype, njit, types

from actors.engines.backends.compiled.atomics import array_at
from actors.engines.backends.compiled.between import add_and_norm, embed, gated, keep_heads, norm, turn
from actors.engines.backends.compiled.choice import CHOICE, UNSURE, choose_rows, rank_rows
from actors.engines.backends.compiled.likeliest import largest
from actors.engines.backends.compiled.simd import LANES
from actors.engines.backends.compiled.team import JOB, Team, perform, product
from actors.engines.backends.compiled.tile import HAS_BFLOAT16, PANEL

__all__ = [
    "CHOICE",
    "HAS_BFLOAT16",
    "JOB",
    "LANES",
    "LAYER",
    "PANEL",
    "UNSURE",
    "Team",
    "choose_rows",
    "product",
    "rank_rows",
    "run_layers",
]

# Of a layer what is not a product, by address: ``inputs`` and ``inner`` are the norms before its two halves (which hold
# the scale of the product behind them), ``heads`` the norms of queries and keys, or 0
LAYER = np.dtype(
    [(name, np.int64) for name in ("inputs", "heads", "inner", "keys", "values")]
    + [(name, np.float32) for name in ("out_scale", "down_scale")]
)
_kept = {"cache": True, "nogil": True, "error_model": "numpy"}
_layers, _jobs = types.Array(from_dtype(LAYER), 1, "C"), types.Array(from_dtype(JOB), 1, "C")
_floats, _table = types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")
_ints, _numbers, _i = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C"), types.int64


@njit(error_model="numpy")
def _collect(segments, visible, places, counts, ends):
    """The slots that each row sees, in order, and how many they are. The last one is repeated up to a whole vector."""
    row = at = 0
    for segment in range(len(segments)):
        rows, base, span = segments[segment]
        for _ in range(rows):
            start, count = row * (len(places) // len(counts)), 0
            for slot in range(span):
                if visible[at + slot]:
                    places[start + count] = base + slot
                    count += 1
            counts[row] = count
            for more in range(count, (count + LANES - 1) // LANES * LANES):
                places[start + more] = places[start + count - 1]
            row, at = row + 1, at + span
        ends[segment] = row


@njit(error_model="numpy")
def _copy(source, start, target, to, count):
    for i in range(count):
        target[to + i] = source[start + i]


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
        *[_layers, _jobs, _ints, types.float32, _table, _numbers, _ints],
        *[_numbers, types.Array(types.boolean, 1, "C")],
        *[_floats, _ints, _table, _table, _ints, _jobs, _jobs, _ints, _i, _i],
    ),
    **_kept,
)
def run_layers(
    layers, jobs, sizes, eps, turns, places, keep, segments, visible,
    room, looks, scores, logits, best, attention, current, state, first, last,
):  # fmt: skip
    """From ``places`` (each row's token, position and slot) to ``logits`` of the rows ``keep``, in ascending order, and
    the likeliest id of each, ``best``.

    ``layers``: of :data:`LAYER`, the last of which has the norm before the head alone; ``jobs``: q/k/v, out, gate and
    up, down of each, and the head. ``sizes``: hidden, heads, heads of keys, width, inner, slots of the pool, ids among
    which the likeliest is looked for, and the address of the embeddings, whose type is that of keys and values.
    ``turns``: cosine and sine of every pair, by position. ``segments``: rows, base and span of each request's;
    ``visible``: which slots of the span each row sees. ``room``: for what is computed in between, see ``_cut``;
    ``looks``: for the slots that each row sees, how many, and each segment's end; ``scores``: for every thread.
    ``attention``: a job of a layer's.

    From half ``first`` to ``last``: a layer's halves end before and behind its attention, which is left out where the
    range ends with a first half or begins with a second. The head comes behind the last.
    """
    hidden, heads, kv_heads, width, inner, pool, ids, embedding = sizes
    tokens, positions, slots = places
    rows, number = len(slots), len(segments)
    x, seen, qkv, normed, narrow, both, activated = _cut(
        room, rows, hidden, heads * width, jobs[0].apart, jobs[1].apart, jobs[2].apart, inner
    )
    look = attention[0]
    if first == 0:
        embed(tokens, embedding, look.half, hidden, x)
        norm(x, array_at(layers[0].inputs, hidden, np.float32), eps, normed, rows)
    look.columns, look.apart, look.requests = jobs[0].apart, heads * width, number
    look.heads, look.slots, look.width = kv_heads, pool, width
    look.room = (len(looks) - rows - number) // rows
    sees, counts, ends = looks[: rows * look.room], looks[rows * look.room :][:rows], looks[len(looks) - number :]
    look.sees, look.counts, look.ends = sees.ctypes.data, counts.ctypes.data, ends.ctypes.data
    look.scores, look.own_scores = scores.ctypes.data, scores.shape[1]
    _collect(segments, visible, sees, counts, ends)
    for half in range(first, last):
        index = half // 2
        layer = layers[index]
        if half % 2 == 0:
            perform(jobs[4 * index], normed, rows, qkv, current, state)
            turn(qkv, jobs[0].apart, turns, positions, layer.heads, eps, heads + kv_heads)
            key = heads * width
            keep_heads(qkv, jobs[0].apart, key, layer.keys, look.half, kv_heads, width, pool, slots)
            keep_heads(
                qkv, jobs[0].apart, key + kv_heads * width, layer.values, look.half, kv_heads, width, pool, slots
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
                _copy(normed, keep[at] * hidden, normed, at * hidden, hidden)
        perform(jobs[len(jobs) - 1], normed, len(keep), logits.reshape(-1), current, state)
        value = np.empty(1, np.float32)
        for at in range(len(keep)):
            largest(logits[at, :ids], best[at : at + 1], value)
