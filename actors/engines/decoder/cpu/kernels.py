"""A forward of few rows on a CPU, compiled by numba in one piece (the extra ``duoactor[jit]``).

A row's sums run over the slots that it sees, in their order, and over nothing else: so its bits depend neither on the
rows beside it, nor on the span, nor on where in the pool a branch of a window lies. All is compiled when this module is
imported, once per machine: numba keeps it on disk. It needs sizes that are multiples of ``LANES``.
"""

from __future__ import annotations

import numpy as np
from numba import from_dtype, njit, types

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.between import add_and_norm, embed, gated, keep_heads, norm, turn
from actors.engines.decoder.cpu.choice import CHOICE, UNSURE, choose_rows, rank_rows
from actors.engines.decoder.cpu.formats import GROUP, HAS_TWELVE, PANEL
from actors.engines.decoder.cpu.pairs import HAS_BFLOAT16
from actors.engines.decoder.cpu.pool_attention import shared_slots
from actors.engines.decoder.cpu.products import ESCAPE
from actors.engines.decoder.cpu.quads import HAS_QUADS, room_of
from actors.engines.decoder.cpu.simd import LANES
from actors.engines.decoder.cpu.team import JOB, TODO, Team, perform, product

__all__ = [
    "BODY",
    "CHOICE",
    "ESCAPE",
    "GROUP",
    "HAS_BFLOAT16",
    "HAS_QUADS",
    "HAS_TWELVE",
    "JOB",
    "LANES",
    "LAYER",
    "PANEL",
    "UNSURE",
    "Team",
    "choose_rows",
    "product",
    "rank_rows",
    "room_of",
    "run_layers",
]

# Of a layer what is not a product, by address: ``inputs`` and ``inner`` are the norms before its two halves (which hold
# the scale of the product behind them), ``heads`` the norms of queries and keys, or 0
LAYER = np.dtype(
    [(name, np.int64) for name in ("inputs", "heads", "inner", "keys", "values")]
    + [(name, np.float32) for name in ("out_scale", "down_scale")]
)
# A model and where it computes. Sizes, of which ``pool`` is slots and ``vocabulary`` the head's rows to choose among;
# then by address: ``layers`` (of ``LAYER``; behind ``depth`` of them one that has the norm before the head alone),
# ``jobs`` (q/k/v, out, gate and up, down of each, and the head), the embeddings, whose type is that of keys and values,
# ``turns`` (cosine and sine of every pair, at ``reach`` positions), a layer's ``attention``, the team's ``current`` job
# and ``state``; ``room`` for what stands between operations (see ``_cut``), ``looks`` for the slots that each row sees,
# how many they are, how many of them the next row shares, and each segment's end, and ``scores`` of attention,
# ``own_scores`` for every thread; ``tokens``, int32 ids that the candidates stand for, or 0: each for its own number
BODY = np.dtype(
    [(name, np.int64) for name in ("depth", "hidden", "heads", "kv_heads", "width", "inner", "pool", "vocabulary")]
    + [(name, np.int64) for name in ("layers", "jobs", "embedding", "turns", "reach", "attention", "current", "state")]
    + [(name, np.int64) for name in ("room", "looks", "scores", "own_scores", "tokens")]
    + [("eps", np.float32)]
)
HEAD = 4  # numbers before the rows' in what a forward is told
SOURCES = "fa2ce6d9502c0896"  # see :mod:`actors.engines.decoder.cpu`
_kept = {"cache": True, "nogil": True, "error_model": "numpy"}
_body, _choices = types.Array(from_dtype(BODY), 1, "C"), types.Array(from_dtype(CHOICE), 1, "C")
_table, _ids = types.Array(types.float32, 2, "C"), types.Array(types.int64, 2, "C")


@njit(error_model="numpy")
def _collect(segments, visible, places, counts, shares, ends):
    """The slots that each row sees, in order, how many they are, and how many of them the next row shares. The last one
    is repeated up to a whole vector."""
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
        shared_slots(places, len(places) // len(counts), counts, row - rows, row, shares)
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
    whole = array_at(room, f + rows * inner, np.float32)
    return whole[:a], whole[a:b], whole[b:c], whole[c:d], whole[d:e], whole[e:f], whole[f:]


@njit(
    types.void(
        *[_body, types.Array(types.int64, 1, "C"), types.Array(types.boolean, 2, "C"), _choices],
        *[_table, _ids, _table],
    ),
    **_kept,
)
def run_layers(model, numbers, visible, choices, logits, ids, probabilities):
    """From each row's token to ``logits`` of those that are kept.

    ``numbers``: how many rows, kept rows and segments there are, and the widest span; every row's token, position and
    slot; the kept rows in ascending order; rows, base and span of each segment. ``visible``: which slots of its span
    each row sees. ``choices``: none, or of each kept row, whose ``ids`` are the likeliest then and have those
    ``probabilities``, or, where there is no room for any, begin with the token that sampling chooses.
    """
    body = model[0]
    hidden, heads, kv_heads, width, inner, pool = (
        body.hidden, body.heads, body.kv_heads, body.width, body.inner, body.pool
    )  # fmt: skip
    layers, jobs = array_at(body.layers, body.depth + 1, LAYER), array_at(body.jobs, 4 * body.depth + 1, JOB)
    turns = array_at(body.turns, body.reach * width, np.float32).reshape(body.reach, width)
    current, state = array_at(body.current, 1, JOB), array_at(body.state, TODO, np.int64)
    rows, kept, number, span = numbers[:HEAD]
    tokens, positions, slots = numbers[HEAD : HEAD + 3 * rows].reshape(3, rows)
    keep, segments = numbers[HEAD + 3 * rows :][:kept], numbers[HEAD + 3 * rows + kept :].reshape(number, 3)
    x, seen, qkv, normed, narrow, both, activated = _cut(
        body.room, rows, hidden, heads * width, jobs[0].apart, jobs[1].apart, jobs[2].apart, inner
    )
    look = array_at(body.attention, 1, JOB)[0]
    embed(tokens, body.embedding, look.half, hidden, x)
    norm(x, array_at(layers[0].inputs, hidden, np.float32), body.eps, normed, rows)
    look.columns, look.apart, look.requests = jobs[0].apart, heads * width, number
    look.heads, look.slots, look.width, look.room = kv_heads, pool, width, span
    looks = array_at(body.looks, rows * (span + 2) + number, np.int64)
    sees, counts = looks[: rows * span], looks[rows * span :][:rows]
    shares, ends = looks[rows * (span + 1) :][:rows], looks[rows * (span + 2) :]
    look.sees, look.counts = sees.ctypes.data, counts.ctypes.data
    look.shares, look.ends = shares.ctypes.data, ends.ctypes.data
    look.scores, look.own_scores = body.scores, body.own_scores
    _collect(segments, visible.reshape(-1), sees, counts, shares, ends)
    for index in range(body.depth):
        layer, place = layers[index], 4 * index
        perform(jobs[place], normed, rows, qkv, current, state)
        turn(qkv, jobs[0].apart, turns, positions, layer.heads, body.eps, heads + kv_heads)
        key = heads * width
        value = key + kv_heads * width
        keep_heads(qkv, jobs[0].apart, key, layer.keys, look.half, kv_heads, width, pool, slots)
        keep_heads(qkv, jobs[0].apart, value, layer.values, look.half, kv_heads, width, pool, slots)
        look.keys, look.values = layer.keys, layer.values
        perform(look, qkv, rows, seen, current, state)
        perform(jobs[place + 1], seen, rows, narrow, current, state)
        weight = array_at(layer.inner, hidden, np.float32)
        add_and_norm(x, narrow, jobs[1].apart, layer.out_scale, weight, body.eps, normed, rows)
        perform(jobs[place + 2], normed, rows, both, current, state)
        gated(both, jobs[2].apart, activated, rows, inner)
        perform(jobs[place + 3], activated, rows, narrow, current, state)
        weight = array_at(layers[index + 1].inputs, hidden, np.float32)
        add_and_norm(x, narrow, jobs[3].apart, layer.down_scale, weight, body.eps, normed, rows)
    for at in range(kept):
        if keep[at] != at:
            _copy(normed, keep[at] * hidden, normed, at * hidden, hidden)
    perform(jobs[4 * body.depth], normed, kept, logits.reshape(-1), current, state)
    if probabilities.shape[1]:
        tokens = array_at(body.tokens, body.vocabulary if body.tokens else 0, np.int32)
        rank_rows(choices, logits[:, : body.vocabulary], tokens, ids, probabilities)
    elif len(choices):
        choose_rows(choices, logits[:, : body.vocabulary], ids[:, 0])
