"""A forward of few rows on a CPU, compiled by numba in one piece (the extra ``duoactor[jit]``).

A row's sums run over the slots that it sees, in their order, and over nothing else: so its bits depend neither on the
rows beside it, nor on the span, nor on where in the pool a branch of a window lies. All is compiled when this module is
imported, once per machine: numba keeps it on disk. It needs sizes that are multiples of ``LANES``.
"""

from __future__ import annotations

import numpy as np
from numba import from_dtype, njit, types

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.between import (
    CENTRED,
    PLAIN,
    RMS,
    activate,
    add_scaled,
    cap,
    embed,
    keep_heads,
    norm,
    norm_heads,
    scale_rows,
    turn,
)
from actors.engines.decoder.cpu.block_forms import embed_blocks
from actors.engines.decoder.cpu.choice import CHOICE, UNSURE, choose_rows, rank_rows
from actors.engines.decoder.cpu.formats import GROUP, HAS_TWELVE, PANEL
from actors.engines.decoder.cpu.pairs import HAS_BFLOAT16
from actors.engines.decoder.cpu.pool_attention import BLOCK, shared_slots
from actors.engines.decoder.cpu.products import ESCAPE
from actors.engines.decoder.cpu.quads import HAS_QUADS, room_of
from actors.engines.decoder.cpu.simd import LANES
from actors.engines.decoder.cpu.team import JOB, TODO, Team, block_product, perform, product

__all__ = [
    "BODY",
    "CENTRED",
    "CHOICE",
    "ESCAPE",
    "GROUP",
    "HAS_BFLOAT16",
    "HAS_QUADS",
    "HAS_TWELVE",
    "IN_BLOCKS",
    "JOB",
    "LANES",
    "LAYER",
    "LOOKS",
    "PANEL",
    "PLAIN",
    "RMS",
    "UNSURE",
    "Team",
    "block_product",
    "choose_rows",
    "product",
    "rank_rows",
    "room_of",
    "run_layers",
]

# Of a layer what is not a product. Norms: an address of weights (which hold the scale of the product behind them), one
# of what is added, or 0, and how they compute: ``inputs`` and ``inner`` before its two halves, ``behind`` and ``last``
# behind them, where there are any. By address ``heads``, the norms of queries and keys, ``turns``, cosine and sine of
# every pair at each position, and ``sinks``: each 0 where there are none. ``up_scale``: of gate and up
_NORMS = ("inputs", "inner", "behind", "last")
LAYER = np.dtype(
    [(name + part, np.int64) for name in _NORMS for part in ("", "_bias", "_kind")]
    + [(name, np.int64) for name in ("heads", "whole", "keys", "values", "turns", "window", "sinks")]
    + [(name, np.int64) for name in ("parallel", "shares", "activation", "gated")]
    + [(name, np.float32) for name in ("out_scale", "up_scale", "down_scale", "scale", "cap")]
)
# A model and where it computes. Sizes, of which ``pool`` is slots and ``vocabulary`` the head's rows to choose among;
# ``window``: of the layers that have one, or 0; ``norm``: how norms of heads compute; ``half``: bfloat16 embeddings.
# Then by address: ``layers`` (of ``LAYER``; behind ``depth`` of them one that has the norm before the head alone),
# ``jobs`` (q/k/v, out, gate and up, down of each, and the head), the embeddings, a layer's ``attention``, the team's
# ``current`` job and ``state``; ``room`` for what stands between operations (see ``_cut``), ``looks`` for what rows see
# (see ``_look``), of all layers and of those with windows, and ``scores`` of attention, ``own_scores`` for every
# thread; ``tokens``, int32 ids that the candidates stand for, or 0: each for its own number;
# ``taps``, int64 of every layer and of what lies behind the last: where among the ``kept`` states of a row in
# ``tapped`` what enters it is kept, or -1; 0: nothing is
BODY = np.dtype(
    [(name, np.int64) for name in ("depth", "hidden", "heads", "kv_heads", "width", "inner", "pool", "vocabulary")]
    + [(name, np.int64) for name in ("window", "norm", "half", "layers", "jobs", "embedding", "reach", "attention")]
    + [(name, np.int64) for name in ("current", "state", "room", "looks", "scores", "own_scores", "tokens")]
    + [(name, np.int64) for name in ("taps", "tapped", "kept")]
    + [(name, np.float32) for name in ("eps", "embedding_scale", "logit_cap")]
)
LOOKS = 3  # numbers of a row beside the slots that it sees
IN_BLOCKS = 2  # ``half`` of embeddings that are those of a job
HEAD = 4  # numbers before the rows' in what a forward is told
SOURCES = "80e9fa9839ffe2ea"  # see :mod:`actors.engines.decoder.cpu`
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
def _look(looks, rows, span, number):
    """Parts of ``looks``: the slots that each row sees, in order, how many they are, how many of them the next row
    shares, how many of the first ones it does not see all the same, and each segment's end."""
    a = rows * span
    return looks[:a], looks[a:][:rows], looks[a + rows :][:rows], looks[a + 2 * rows :][:rows], looks[a + 3 * rows :]


@njit(error_model="numpy")
def _narrow(whole, part, rows, span, number, window):
    """What rows see that look back ``window`` tokens: from the last whole block before those on, so that rows that
    follow one another begin alike."""
    places, counts, _, _, ends = whole
    few, fewer, shares, skips, few_ends = part
    first = 0
    for segment in range(number):
        for row in range(first, ends[segment]):
            begin = max(0, counts[row] - window)
            aligned = begin // BLOCK * BLOCK
            count = counts[row] - aligned
            for at in range((count + LANES - 1) // LANES * LANES):
                few[row * span + at] = places[row * span + aligned + at]
            fewer[row], skips[row] = count, begin - aligned
        shared_slots(few, span, fewer, first, ends[segment], shares)
        first = few_ends[segment] = ends[segment]


@njit(error_model="numpy")
def _point(look, parts):
    sees, counts, shares, skips, ends = parts
    look.sees, look.counts = sees.ctypes.data, counts.ctypes.data
    look.shares, look.skips, look.ends = shares.ctypes.data, skips.ctypes.data, ends.ctypes.data


@njit(error_model="numpy")
def _join(x, more, apart, scale, layer_norm, kind, bias, eps, size, rows):
    """``x += scale * more``, which is normed first if there is a norm behind it."""
    if layer_norm == 0:
        add_scaled(x, more, apart, scale, size, rows)
        return
    scale_rows(more, apart, size, rows, scale)
    norm(more, kind, array_at(layer_norm, size, np.float32), bias, eps, more, apart, rows)
    add_scaled(x, more, apart, np.float32(1), size, rows)


@njit(error_model="numpy")
def _copy(source, start, target, to, count):
    for i in range(count):
        target[to + i] = source[start + i]


@njit(error_model="numpy")
def _tap(body, layer, x, rows):
    """Keep the states ``x`` that enter the layer, if they are wanted."""
    place, hidden = array_at(body.taps, body.depth + 1, np.int64)[layer], body.hidden
    if place < 0:
        return
    out = array_at(body.tapped, rows * body.kept * hidden, np.float32)
    for row in range(rows):
        _copy(x, row * hidden, out, (row * body.kept + place) * hidden, hidden)


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
    current, state = array_at(body.current, 1, JOB), array_at(body.state, TODO, np.int64)
    rows, kept, number, span = numbers[:HEAD]
    tokens, positions, slots = numbers[HEAD : HEAD + 3 * rows].reshape(3, rows)
    keep, segments = numbers[HEAD + 3 * rows :][:kept], numbers[HEAD + 3 * rows + kept :].reshape(number, 3)
    x, seen, qkv, normed, narrow, both, activated = _cut(
        body.room, rows, hidden, heads * width, jobs[0].apart, jobs[1].apart, jobs[2].apart, inner
    )
    look = array_at(body.attention, 1, JOB)[0]
    if body.half == IN_BLOCKS:
        table = array_at(body.embedding, 1, JOB)[0]
        embed_blocks(tokens, table.form, table.weights, table.panels, table.own, hidden, x)
    else:
        embed(tokens, body.embedding, body.half, hidden, x)
    scale_rows(x, hidden, hidden, rows, body.embedding_scale)
    eps = body.eps
    before = layers[0]
    weight = array_at(before.inputs, hidden, np.float32)
    norm(x, before.inputs_kind, weight, before.inputs_bias, eps, normed, hidden, rows)
    look.columns, look.apart, look.requests = jobs[0].apart, heads * width, number
    look.heads, look.slots, look.width, look.room = kv_heads, pool, width, span
    look.scores, look.own_scores = body.scores, body.own_scores
    size = rows * (span + LOOKS) + number
    looks = array_at(body.looks, 2 * size, np.int64)
    whole, part = _look(looks[:size], rows, span, number), _look(looks[size:], rows, span, number)
    _collect(segments, visible.reshape(-1), whole[0], whole[1], whole[2], whole[4])
    whole[3][:] = 0
    windows = body.window > 0 and span > body.window
    if windows:
        _narrow(whole, part, rows, span, number, body.window)
    for index in range(body.depth):
        layer, following, place = layers[index], layers[index + 1], 4 * index
        if body.taps != 0:
            _tap(body, index, x, rows)
        perform(jobs[place], normed, rows, qkv, current, state)
        apart = jobs[place].apart
        if layer.heads != 0:
            norm_heads(qkv, apart, rows, layer.heads, body.norm, eps, heads, kv_heads, width, layer.whole)
        if layer.turns != 0:
            turns = array_at(layer.turns, body.reach * width, np.float32)
            turn(qkv, apart, turns, width, positions, heads + kv_heads)
        key = heads * width
        value = key + kv_heads * width
        keep_heads(qkv, apart, key, layer.keys, look.half, kv_heads, width, pool, slots)
        keep_heads(qkv, apart, value, layer.values, look.half, kv_heads, width, pool, slots)
        _point(look, part if windows and layer.window > 0 else whole)
        look.keys, look.values, look.sinks = layer.keys, layer.values, layer.sinks
        look.scale, look.cap = layer.scale, layer.cap
        perform(look, qkv, rows, seen, current, state)
        perform(jobs[place + 1], seen, rows, narrow, current, state)
        inner_weight = array_at(layer.inner, hidden if layer.inner else 0, np.float32)
        if layer.parallel and not layer.shares:
            norm(x, layer.inner_kind, inner_weight, layer.inner_bias, eps, normed, hidden, rows)
        apart = jobs[place + 1].apart
        _join(x, narrow, apart, layer.out_scale, layer.behind, layer.behind_kind, layer.behind_bias, eps, hidden, rows)
        if not layer.parallel:
            norm(x, layer.inner_kind, inner_weight, layer.inner_bias, eps, normed, hidden, rows)
        perform(jobs[place + 2], normed, rows, both, current, state)
        apart = jobs[place + 2].apart
        activate(both, apart, activated, rows, inner, layer.activation, layer.gated, layer.up_scale)
        perform(jobs[place + 3], activated, rows, narrow, current, state)
        apart = jobs[place + 3].apart
        _join(x, narrow, apart, layer.down_scale, layer.last, layer.last_kind, layer.last_bias, eps, hidden, rows)
        weight = array_at(following.inputs, hidden, np.float32)
        norm(x, following.inputs_kind, weight, following.inputs_bias, eps, normed, hidden, rows)
    if body.taps != 0:
        _tap(body, body.depth, x, rows)
    for at in range(kept):
        if keep[at] != at:
            _copy(normed, keep[at] * hidden, normed, at * hidden, hidden)
    out = logits.reshape(-1)
    perform(jobs[4 * body.depth], normed, kept, out, current, state)
    if body.logit_cap != 0:
        cap(out, 0, len(out), np.float32(1), body.logit_cap)
    if probabilities.shape[1]:
        tokens = array_at(body.tokens, body.vocabulary if body.tokens else 0, np.int32)
        rank_rows(choices, logits[:, : body.vocabulary], tokens, ids, probabilities)
    elif len(choices):
        choose_rows(choices, logits[:, : body.vocabulary], ids[:, 0])
