"""The states of recurrent layers: a head's, row by row through the trees of windows and the pieces of prompts.

A state ``(keys, values)`` lies in tiles of ``LANES`` values, each of which depends on no other. A row makes its tile of
its parent's, so that a branch costs what a chain does, and a row's bits are those of plain decoding. A text's own tile
is changed by certain rows alone: the last verdict's accepted ones (``pending``), and a prompt's.
"""

from __future__ import annotations

import numpy as np

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.linking import linked
from actors.engines.decoder.cpu.records import DELTA, LANES, MIXER, SELECTIVE, STREAM
from actors.engines.decoder.cpu.simd import add, exponential, fma, load, splat, store

_ZERO = np.float32(0)


@linked
def _place_rows(parents, first, rows, before, places, root):
    """Places of the tiles of a window's rows. A row takes its parent's place once no other row needs that. ``root``:
    the row before the first one."""
    last, free, taken, made = np.full(rows, -1, np.int64), np.empty(rows + 1, np.int64), 0, 0
    for row in range(rows):
        if parents[first + row] >= 0:
            last[parents[first + row]] = row
    for row in range(rows):
        parent, at = parents[first + row], first + row
        before[at] = first + parent if parent >= 0 else root
        if parent >= 0 and last[parent] == row:
            places[at] = places[first + parent]
        elif taken:
            taken -= 1
            places[at] = free[taken]
        else:
            made += 1
            places[at] = made
        if last[row] < 0:
            free[taken] = places[at]
            taken += 1


@linked
def place_streams(walk):
    """Fill ``before`` and ``places``."""
    streams, parents = array_at(walk.streams, walk.count, STREAM), array_at(walk.parents, walk.rows, np.int64)
    before, places = array_at(walk.before, walk.total, np.int64), array_at(walk.places, walk.total, np.int64)
    for row in range(walk.rows, walk.total):
        before[row], places[row] = row - 1, 0
    for index in range(walk.count):
        stream = streams[index]
        first, root = stream.first, stream.past_at + walk.past - 1
        if stream.pending:
            before[stream.pending_at], root = root, stream.pending_at + stream.pending - 1
        if stream.ahead == 0:
            _place_rows(parents, first, stream.rows, before, places, root)
            continue
        for row in range(stream.rows):  # a piece of a prompt
            before[first + row], places[first + row] = root if row == 0 else first + row - 1, 0


@linked
def _selective_step(mixer, walk, place, row, source, target):
    """:func:`_step` of Mamba 1, of each number of whose state a row decides how much of it is left."""
    head, tile = place
    keys, zero, first = mixer.keys, splat(_ZERO), head * mixer.values + tile * LANES
    inner = mixer.heads * mixer.values
    value = load(array_at(walk.mixed + 4 * row * inner, inner, np.float32), first)
    chosen = array_at(walk.chosen + 4 * (row * mixer.chosen + mixer.rank), 2 * keys, np.float32)
    logarithms = array_at(mixer.decay, keys * inner, np.float32)
    rate = load(array_at(walk.rates + 4 * row * mixer.timed, inner, np.float32), first)
    change, out = fma(value, rate, zero), zero
    for i in range(keys):
        at = (head * keys + i) * mixer.values + tile * LANES
        decay = exponential(fma(load(logarithms, at), rate, zero))
        one = fma(splat(chosen[i]), change, fma(load(source, i * LANES), decay, zero))
        store(target, i * LANES, one)
        out = fma(one, splat(chosen[keys + i]), out)
    return fma(value, load(array_at(mixer.skip, inner, np.float32), first), out)


@linked
def _add_key(tiles, terms, i, out):
    """Compute line ``i`` of a tile, that of a key's number; return ``out`` and what the query reads there."""
    (source, target), (mixed, key, query, change, decay) = tiles, terms
    one = fma(splat(mixed[key + i]), change, fma(load(source, i * LANES), decay, splat(_ZERO)))
    store(target, i * LANES, one)
    return fma(one, splat(mixed[query + i]), out)


@linked
def _step(mixer, walk, place, row, source, target):
    """Compute the tile after a row from the tile before it. ``place``: head, and number of the tile in it. Return the
    row's output."""
    if mixer.kind == SELECTIVE:
        return _selective_step(mixer, walk, place, row, source, target)
    head, tile = place
    keys, channels = mixer.keys, mixer.channels
    mixed = array_at(walk.mixed + 4 * row * channels, channels, np.float32)
    query = (head % mixer.groups if mixer.tiled else head * mixer.groups // mixer.heads) * keys
    key, shared = query + mixer.groups * keys, channels - mixer.heads * mixer.values
    value = load(mixed, shared + head * mixer.values + tile * LANES)
    number = row * mixer.heads + head
    count, zero = (walk.rows + walk.pending) * mixer.heads, splat(_ZERO)
    decay = splat(array_at(walk.decays, count, np.float32)[number])
    rate = splat(array_at(walk.rates, count, np.float32)[number])
    a, b, c, d = zero, zero, zero, zero
    if mixer.kind == DELTA:
        for i in range(0, keys, 4):
            a = fma(load(source, i * LANES), splat(mixed[key + i]), a)
            b = fma(load(source, (i + 1) * LANES), splat(mixed[key + i + 1]), b)
            c = fma(load(source, (i + 2) * LANES), splat(mixed[key + i + 2]), c)
            d = fma(load(source, (i + 3) * LANES), splat(mixed[key + i + 3]), d)
        known = fma(add(add(a, b), add(c, d)), decay, zero)
        change = fma(fma(known, splat(np.float32(-1)), value), rate, zero)
    else:
        change = fma(value, rate, zero)
    a, b, c, d = zero, zero, zero, zero
    tiles, terms = (source, target), (mixed, key, query, change, decay)
    for i in range(0, keys, 4):
        a = _add_key(tiles, terms, i, a)
        b = _add_key(tiles, terms, i + 1, b)
        c = _add_key(tiles, terms, i + 2, c)
        d = _add_key(tiles, terms, i + 3, d)
    out = add(add(a, b), add(c, d))
    if mixer.skip != 0:
        out = fma(value, splat(array_at(mixer.skip, mixer.heads, np.float32)[head]), out)
    return out


@linked
def _tile(place, own, room, size):
    address = own if place == 0 else room + 4 * (place - 1) * size
    return array_at(address, size, np.float32)


@linked
def walk_piece(walk, number, out, apart, room):
    """Walk all rows of one text and head. ``room``: address of this thread's tiles."""
    mixer = array_at(walk.mixer, 1, MIXER)[0]
    stream = array_at(walk.streams, walk.count, STREAM)[number // mixer.heads]
    head, size, tiles = number % mixer.heads, mixer.keys * LANES, mixer.values // LANES
    before, places = array_at(walk.before, walk.total, np.int64), array_at(walk.places, walk.total, np.int64)
    for tile in range(tiles):
        at = 4 * (mixer.at + mixer.past + (head * tiles + tile) * size)
        own = stream.state + at
        if stream.ahead != 0 or stream.borrowed:
            own = room + 4 * stream.rows * size if stream.borrowed else stream.ahead + at
            known, new = array_at(stream.state + at, size, np.float32), array_at(own, size, np.float32)
            for i in range(0, size, LANES):
                store(new, i, load(known, i))
        text = array_at(own, size, np.float32)
        for row in range(stream.pending_at, stream.pending_at + stream.pending):
            _step(mixer, walk, (head, tile), row, text, text)
        for row in range(stream.first, stream.first + stream.rows):
            source = _tile(places[before[row]], own, room, size)
            target = _tile(places[row], own, room, size)
            made = _step(mixer, walk, (head, tile), row, source, target)
            store(out, row * apart + head * mixer.values + tile * LANES, made)
