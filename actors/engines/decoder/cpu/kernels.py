"""A forward of few rows on a CPU, compiled by numba in one piece (the extra ``duoactor[jit]``).

A row's sums run over the slots that it sees, in their order, and over nothing else: so its bits depend neither on the
rows beside it, nor on the span, nor on where in the pool a branch of a window lies. All is compiled when this module is
imported, once per machine: numba keeps it on disk. It needs sizes that are multiples of ``LANES``.
"""

from __future__ import annotations

import numpy as np
from numba import from_dtype, types

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.between import (
    Activation,
    NormTerms,
    activate,
    add_scaled,
    cap,
    copy,
    embed,
    gate_heads,
    join_hidden,
    keep_heads,
    norm_heads,
    norm_hidden,
    norm_part,
    scale_rows,
    turn,
)
from actors.engines.decoder.cpu.blocks import embed_blocks
from actors.engines.decoder.cpu.choice import UNSURE, choose_rows, rank_rows
from actors.engines.decoder.cpu.experts import mix_experts, sigmoid
from actors.engines.decoder.cpu.jobs import state_at
from actors.engines.decoder.cpu.linking import kept, linked
from actors.engines.decoder.cpu.pairs import HAS_BFLOAT16
from actors.engines.decoder.cpu.pool_attention import BLOCK, shared_slots
from actors.engines.decoder.cpu.records import (
    BODY,
    CHOICE,
    EXPERTS,
    IN_BLOCKS,
    INPUTS,
    JOB,
    LANES,
    LATENT,
    LAYER,
    LOOKS,
    NORM,
    RMS,
    TOGETHER,
    WALK,
    Rooms,
)
from actors.engines.decoder.cpu.recurrent import mix_states
from actors.engines.decoder.cpu.state_walk import place_streams
from actors.engines.decoder.cpu.team import Helpers, Team, perform

__all__ = [
    "HAS_BFLOAT16",
    "UNSURE",
    "Team",
    "choose_rows",
    "rank_rows",
    "run_layers",
]

HEAD = 4  # numbers before the rows' in what a forward is told
_body, _choices = types.Array(from_dtype(BODY), 1, "C"), types.Array(from_dtype(CHOICE), 1, "C")
_table, _ids = types.Array(types.float32, 2, "C"), types.Array(types.int64, 2, "C")


@linked
def _collect(segments, visible, places, counts, shares, ends):
    """Collect each row's visible slots in order, their number, and how many of them the next row shares. The last slot
    is repeated to fill a whole vector. Return where each group of rows that attend together ends."""
    row = at = parts = 0
    for segment in range(len(segments)):
        rows, base, span, _ = segments[segment]
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
        for end in range(row - rows + TOGETHER, row + TOGETHER, TOGETHER):
            ends[parts] = min(end, row)
            parts += 1
    return ends[:parts]


@linked
def _look(looks, rows, span):
    """Parts of ``looks``: each row's visible slots in order, their number, how many of them the next row shares, how
    many of the first ones are masked after all, and the row's own slot."""
    a = rows * span
    counts, shares, skips = looks[a:][:rows], looks[a + rows :][:rows], looks[a + 2 * rows :][:rows]
    return looks[:a], counts, shares, skips, looks[a + 3 * rows :][:rows]


@linked
def _in_ring(slot, base, ring, length):
    """Slot in a text's ring. The text begins at ``base``, its ring at ``ring``."""
    return ring + (slot - base) % length


@linked
def _narrow(whole, part, segments, span, body):
    """Visible slots of rows with a window. They begin at a whole block before the window, so that consecutive rows
    begin alike. Where texts have rings, the slots are the rings'."""
    places, counts, _, _, own = whole
    few, fewer, shares, skips, few_own = part
    first = 0
    for segment in range(len(segments)):
        rows, base, _, ring = segments[segment]
        for row in range(first, first + rows):
            begin = max(0, counts[row] - body.window)
            if body.chunked:
                begin = (counts[row] - 1) // body.window * body.window
            aligned = begin // BLOCK * BLOCK
            count = counts[row] - aligned
            start, filled = row * span, (count + LANES - 1) // LANES * LANES
            few_own[row] = _in_ring(own[row], base, ring, body.ring) if body.ring > 0 else own[row]
            for at in range(start, start + filled):
                few[at] = places[at + aligned]
                if body.ring > 0:
                    few[at] = _in_ring(few[at], base, ring, body.ring)
            fewer[row], skips[row] = count, begin - aligned
        shared_slots(few, span, fewer, first, first + rows, shares)
        first += rows


@linked
def _point(look, parts, ends):
    sees, counts, shares, skips, _ = parts
    look.sees, look.counts = sees.ctypes.data, counts.ctypes.data
    look.shares, look.skips, look.ends = shares.ctypes.data, skips.ctypes.data, ends.ctypes.data
    look.requests = len(ends)


@linked
def _tap(body, layer, x, rows):
    """Copy out the states ``x`` that enter the layer, if they are asked for."""
    place, hidden = array_at(body.taps, body.depth + 1, np.int64)[layer], body.hidden
    if place < 0:
        return
    out = array_at(body.tapped, rows * body.kept * hidden, np.float32)
    for row in range(rows):
        copy(x, row * hidden, out, (row * body.kept + place) * hidden, hidden)


@linked
def _part(room, ends, number):
    """Part ``number`` of the room, from ``ends[number]`` to ``ends[number + 1]``."""
    return array_at(room + 4 * ends[number], ends[number + 1] - ends[number], np.float32)


@linked
def _cut(body, positions):
    rows, ends, sizes = len(positions), np.zeros(12, np.int64), array_at(body.sizes, 11, np.int64)
    for number in range(11):
        ends[number + 1] = ends[number] + rows * sizes[number]
    room = body.room
    return Rooms(
        Helpers(array_at(body.current, 1, JOB), state_at(body.state)),
        rows,
        positions,
        _part(room, ends, 0),
        _part(room, ends, 1),
        _part(room, ends, 2),
        _part(room, ends, 3),
        _part(room, ends, 4),
        _part(room, ends, 5),
        _part(room, ends, 6),
        _part(room, ends, 7),
        _part(room, ends, 8),
        _part(room, ends, 9),
        _part(room, ends, 10),
    )


@linked
def _make_latent(body, layer, down, rooms):
    """Fill ``rooms.qkv`` for latent attention: queries, and a key that is also the value. Return the distance of
    rows."""
    rows, latent, width = rooms.rows, array_at(layer.latent, 1, LATENT)[0], layer.width
    queries = layer.queries * width
    apart = queries + width
    if latent.query == 0:
        perform(down, rooms.normed, rows, rooms.qkv, rooms.helpers)
    else:
        size = latent.query_rank
        terms = NormTerms(RMS, array_at(latent.query_norm, size, np.float32), 0, latent.eps)
        perform(down, rooms.normed, rows, rooms.both, rooms.helpers)
        for row in range(rows):
            start = row * down.apart + width
            norm_part(rooms.both, start, size, terms, 0, rooms.both)
            copy(rooms.both, start, rooms.activated, row * size, size)
            copy(rooms.both, row * down.apart, rooms.qkv, row * apart + queries, width)
        perform(array_at(latent.query, 1, JOB)[0], rooms.activated, rows, rooms.seen, rooms.helpers)
        for row in range(rows):
            copy(rooms.seen, row * queries, rooms.qkv, row * apart, queries)
    terms = NormTerms(RMS, array_at(latent.key_norm, latent.rank, np.float32), 0, latent.eps)
    for end in range(apart, (rows + 1) * apart, apart):
        norm_part(rooms.qkv, end - latent.rank, latent.rank, terms, 0, rooms.qkv)
    return apart


@linked
def _attend(body, layer, look, rooms, slots):
    """``rooms.seen``, once the rows' keys and values are in their ``slots``."""
    apart, rows, heads, own, width = look.columns, rooms.rows, layer.queries, layer.own, layer.width
    look.apart, look.heads, look.width = heads * width, layer.kv_heads, width
    if layer.heads != 0 and not layer.late:
        norm_heads(rooms.qkv, apart, rows, layer, body)
    if layer.turns != 0:
        turns = array_at(layer.query_turns, body.reach * width, np.float32)
        turn(rooms.qkv, apart, turns, width, rooms.positions, range(heads))
        turns = array_at(layer.turns, body.reach * width, np.float32)
        turn(rooms.qkv, apart, turns, width, rooms.positions, range(heads, heads + own))
    if layer.heads != 0 and layer.late:
        norm_heads(rooms.qkv, apart, rows, layer, body)
    key = heads * width
    value = key if layer.latent != 0 else key + own * width
    if own:
        keep_heads(rooms.qkv, key, layer.keys, look, slots)
        keep_heads(rooms.qkv, value, layer.values, look, slots)
    look.keys, look.values, look.sinks = layer.keys, layer.values, layer.sinks
    look.scale, look.cap = layer.scale, layer.cap
    perform(look, rooms.qkv, rows, rooms.seen, rooms.helpers)
    if layer.gates:
        gate_heads(rooms.seen, layer, rooms.qkv, apart, value + own * width, rows)


@linked
def _mlp(layer, up, down, rooms, out):
    perform(up, rooms.normed, rooms.rows, rooms.both, rooms.helpers)
    activation = Activation(layer.activation, layer.gated, layer.inner_size, layer.positive, layer.negative)
    activate(rooms.both, up.apart, rooms.activated, rooms.rows, activation)
    perform(down, rooms.activated, rooms.rows, out, rooms.helpers)


@linked
def _mixture(body, layer, up, down, rooms):
    """What experts give, and the shared one beside them. Returns how far its rows are apart."""
    experts, rows = array_at(layer.experts, 1, EXPERTS)[0], rooms.rows
    norms = array_at(experts.norms, 4 if experts.norms else 0, NORM)
    apart = array_at(experts.jobs, 2, JOB)[1].apart
    if len(norms):
        norm_hidden(rooms.x, body.hidden, norms[0], body, rows, rooms.normed)
    perform(array_at(experts.router, 1, JOB)[0], rooms.normed, rows, rooms.routed, rooms.helpers)
    if len(norms):
        norm_hidden(rooms.x, body.hidden, norms[1], body, rows, rooms.normed)
    mix_experts(experts, body.hidden, rooms)
    if len(norms):
        norm_hidden(rooms.narrow, apart, norms[2], body, rows, rooms.narrow)
        norm_hidden(rooms.x, body.hidden, layer.inner, body, rows, rooms.normed)
    if layer.inner_size == 0:
        return apart
    _mlp(layer, up, down, rooms, rooms.given)
    if len(norms):
        norm_hidden(rooms.given, down.apart, norms[3], body, rows, rooms.given)
    routed = array_at(experts.router, 1, JOB)[0].apart
    for row in range(rooms.rows):
        share = sigmoid(rooms.routed[row * routed + experts.count]) if experts.shared_gated else np.float32(1)
        share *= experts.shared_scale
        for i in range(body.hidden):
            rooms.narrow[row * apart + i] += share * rooms.given[row * down.apart + i]
    return apart


@linked
def _embed(tokens, table, half, size, scale, out):
    if half == IN_BLOCKS:
        embed_blocks(tokens, array_at(table, 1, JOB)[0], size, out)
    else:
        embed(tokens, table, half, size, out)
    scale_rows(out, size, size, len(tokens), scale)


@linked
def _place(body, rooms):
    """What positions add to embeddings, and the norm of both; a row behind the last position has that of the last."""
    rows, hidden = rooms.rows, body.hidden
    if body.positions != 0:
        places = np.empty(rows, np.int64)
        for row in range(rows):
            places[row] = min(rooms.positions[row] + body.positions_first, body.positions_last)
        _embed(places, body.positions, body.positions_half, hidden, np.float32(1), rooms.normed)
        add_scaled(rooms.x, rooms.normed, hidden, np.float32(1), hidden, rows)
    if body.embedded.weight != 0:
        norm_hidden(rooms.x, hidden, body.embedded, body, rows, rooms.x)


@linked
def _make_inputs(body, tokens, rooms):
    """``rooms.inputs`` of all layers, see ``LayerInputs``."""
    inputs, rows = array_at(body.inputs, 1, INPUTS)[0], rooms.rows
    job, width, size = array_at(inputs.job, 1, JOB)[0], inputs.width, body.depth * inputs.width
    perform(job, rooms.x, rows, rooms.both, rooms.helpers)
    scale_rows(rooms.both, job.apart, size, rows, inputs.matrix_scale)
    terms = NormTerms(RMS, array_at(inputs.norm, width, np.float32), 0, body.eps)
    for row in range(rows):
        for start in range(row * job.apart, row * job.apart + size, width):
            norm_part(rooms.both, start, width, terms, 0, rooms.both)
    _embed(tokens, inputs.table, inputs.half, size, inputs.table_scale, rooms.inputs)
    add_scaled(rooms.inputs, rooms.both, job.apart, np.float32(1), size, rows)
    scale_rows(rooms.inputs, size, size, rows, inputs.scale)


@linked
def _add_beside(body, index, layer, rooms):
    """See ``Beside``."""
    jobs, width, rows = array_at(layer.beside, 2, JOB), array_at(body.inputs, 1, INPUTS)[0].width, rooms.rows
    gate, out = jobs[0], jobs[1]
    perform(gate, rooms.x, rows, rooms.both, rooms.helpers)
    activation = Activation(layer.beside_activation, 0, width, np.float32(0), np.float32(0))
    activate(rooms.both, gate.apart, rooms.activated, rows, activation)
    for row in range(rows):
        start = (row * body.depth + index) * width
        for i in range(width):
            rooms.activated[row * width + i] *= rooms.inputs[start + i]
    perform(out, rooms.activated, rows, rooms.narrow, rooms.helpers)
    join_hidden(rooms, out.apart, layer.beside_norm, layer.mlp_scale, body)


@linked
def _sights(body, segments, visible, slots, span):
    """Visible slots of rows: of their texts, and of the parts within layers' windows; and :func:`_collect`'s ends."""
    rows = len(slots)
    size = rows * (span + LOOKS)
    looks = array_at(body.looks, 2 * size + rows, np.int64)
    whole, part = _look(looks[rows:], rows, span), _look(looks[rows + size :], rows, span)
    ends = _collect(segments, visible.reshape(-1), whole[0], whole[1], whole[2], looks[:rows])
    whole[3][:] = 0
    copy(slots, 0, whole[4], 0, rows)
    if body.window > 0 and (span > body.window or body.ring > 0):
        _narrow(whole, part, segments, span, body)
        return whole, part, ends
    return whole, whole, ends


@linked
def _run_layer(body, index, looks, rooms):
    """One layer, from ``rooms.normed`` of its input to that of the next one's."""
    layers = array_at(body.layers, body.depth + 1, LAYER)
    jobs = array_at(body.jobs, 4 * body.depth + 1, JOB)[4 * index : 4 * index + 4]
    layer, look, rows, (whole, part, ends) = layers[index], array_at(body.attention, 1, JOB)[0], rooms.rows, looks
    qkv, out, up, down = jobs[0], jobs[1], jobs[2], jobs[3]
    if layer.mixer != 0:
        mix_states(body, layer, qkv, look, rooms)
    else:
        look.columns = qkv.apart
        if layer.latent != 0:
            look.columns = _make_latent(body, layer, qkv, rooms)
        else:
            perform(qkv, rooms.normed, rows, rooms.qkv, rooms.helpers)
        sight = part if layer.window > 0 else whole
        look.slots = body.windowed if layer.window > 0 else body.pool
        _point(look, sight, ends)
        _attend(body, layer, look, rooms, sight[4])
    perform(out, rooms.seen, rows, rooms.narrow, rooms.helpers)
    if layer.parallel and not layer.shares:
        norm_hidden(rooms.x, body.hidden, layer.inner, body, rows, rooms.normed)
    join_hidden(rooms, out.apart, layer.behind, layer.mixer_scale, body)
    if layer.experts != 0 or layer.inner_size != 0:
        if not layer.parallel:
            norm_hidden(rooms.x, body.hidden, layer.inner, body, rows, rooms.normed)
        apart = down.apart
        if layer.experts != 0:
            apart = _mixture(body, layer, up, down, rooms)
        else:
            _mlp(layer, up, down, rooms, rooms.narrow)
        join_hidden(rooms, apart, layer.last, layer.mlp_scale, body)
    if layer.beside != 0:
        _add_beside(body, index, layer, rooms)
    scale_rows(rooms.x, body.hidden, body.hidden, rows, layer.factor)
    if not layers[index + 1].rereads:
        norm_hidden(rooms.x, body.hidden, layers[index + 1].inputs, body, rows, rooms.normed)


@kept(
    types.void(
        *[_body, types.Array(types.int64, 1, "C"), types.Array(types.boolean, 2, "C"), _choices],
        types.Tuple((_table, _ids, _table)),
    ),
    nogil=True,
)
def run_layers(model, numbers, visible, choices, made):
    """Compute a forward: from each row's token to ``made``, the kept rows' logits, ids and probabilities.

    ``numbers``: counts of rows, kept rows and segments, and the widest span; then token, position and slot of every
    row; the kept rows in ascending order; rows, base, span and ring of every segment. ``visible``: the slots of its
    span that each row sees. ``choices``: one for each kept row, or none. With choices and room for probabilities the
    ids are the likeliest ones; without that room the first id is the token that sampling chooses.
    """
    body, (logits, ids, probabilities) = model[0], made
    hidden, jobs = body.hidden, array_at(body.jobs, 4 * body.depth + 1, JOB)
    rows, kept, number, span = numbers[:HEAD]
    tokens, positions, slots = numbers[HEAD : HEAD + 3 * rows].reshape(3, rows)
    keep, segments = numbers[HEAD + 3 * rows :][:kept], numbers[HEAD + 3 * rows + kept :].reshape(number, 4)
    rooms, look = _cut(body, positions), array_at(body.attention, 1, JOB)[0]
    _embed(tokens, body.embedding, body.half, hidden, body.embedding_scale, rooms.x)
    _place(body, rooms)
    if body.inputs != 0:
        _make_inputs(body, tokens, rooms)
    norm_hidden(rooms.x, body.hidden, array_at(body.layers, 1, LAYER)[0].inputs, body, rows, rooms.normed)
    look.room = span
    look.scores, look.own_scores = body.scores, body.own_scores
    looks = _sights(body, segments, visible, slots, span)
    if body.walk != 0:
        place_streams(array_at(body.walk, 1, WALK)[0])
    for index in range(body.depth + 1):
        if body.taps != 0:
            _tap(body, index, rooms.x, rows)
        if index < body.depth:
            _run_layer(body, index, looks, rooms)
    for at in range(kept):
        if keep[at] != at:
            copy(rooms.normed, keep[at] * hidden, rooms.normed, at * hidden, hidden)
    flat = logits.reshape(-1)
    perform(jobs[4 * body.depth], rooms.normed, kept, flat, rooms.helpers)
    if body.logit_cap != 0:
        cap(flat, 0, len(flat), np.float32(1), body.logit_cap)
    if probabilities.shape[1]:
        tokens = array_at(body.tokens, body.vocabulary if body.tokens else 0, np.int32)
        rank_rows(choices, logits[:, : body.vocabulary], tokens, ids, probabilities)
    elif len(choices):
        choose_rows(choices, logits[:, : body.vocabulary], ids[:, 0])
