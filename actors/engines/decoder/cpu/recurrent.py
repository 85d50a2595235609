"""A recurrent layer of a forward, compiled by numba: its convolution, its states' walk and its gate.

Inputs of a convolution are found by following the rows' parents: into a window's ancestors, then into the rows that the
last verdict has accepted, then into the text's former inputs. What a window's rows put in is all that has to be kept of
them: their states are made of it again.
"""

from __future__ import annotations

import math

import numpy as np

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.between import SILU, NormTerms, activated, copy, norm_part, softplus
from actors.engines.decoder.cpu.linking import linked
from actors.engines.decoder.cpu.records import (
    CONVOLUTION,
    DELTA,
    JOB,
    LANES,
    MIXER,
    RMS,
    SCAN,
    SELECTIVE,
    STREAM,
    WALK,
)
from actors.engines.decoder.cpu.simd import fma, load, splat, store, total
from actors.engines.decoder.cpu.team import perform

_ZERO, _ONE = np.float32(0), np.float32(1)
_EPS = np.float32(1e-6)  # added to squares of unit queries and keys, in every model with a delta rule


@linked
def _put_in(mixer, walk, qkv, apart, raw):
    """Inputs of the convolution, and numbers of heads: those of the forward's rows, then of pending rows, then of
    earlier ones."""
    width, channels, inner = walk.width, mixer.channels, mixer.heads * mixer.values
    zero, past = splat(_ZERO), mixer.kernel - 1
    for row in range(walk.rows):
        start, to = row * apart, row * width
        if mixer.kind == CONVOLUTION:
            for i in range(0, channels, LANES):
                store(raw, to + i, fma(load(qkv, start + i), load(qkv, start + 2 * inner + i), zero))
        else:
            copy(qkv, start, raw, to, channels)
            copy(qkv, start + channels + inner, raw, to + channels, min(apart - inner, width) - channels)
    streams = array_at(walk.streams, walk.count, STREAM)
    for index in range(walk.count):
        stream = streams[index]
        size = stream.pending * width
        if size:
            records = array_at(stream.records + 4 * mixer.number * size, size, np.float32)
            copy(records, 0, raw, stream.pending_at * width, size)
        numbers = array_at(stream.state + 4 * mixer.at, mixer.past, np.float32)
        for place in range(past):
            copy(numbers, place * channels, raw, (stream.past_at + place) * width, channels)


@linked
def _keep_past(mixer, walk, raw, before):
    """Keep the inputs of every text that the next forward's convolutions reach back to."""
    streams, past, channels = array_at(walk.streams, walk.count, STREAM), mixer.kernel - 1, mixer.channels
    for index in range(walk.count):
        stream = streams[index]
        if stream.borrowed:
            continue
        row, where = stream.past_at + past - 1, stream.state
        if stream.ahead != 0:
            row, where = stream.first + stream.rows - 1, stream.ahead
        elif stream.pending:
            row = stream.pending_at + stream.pending - 1
        numbers = array_at(where + 4 * mixer.at, mixer.past, np.float32)
        for place in range(past - 1, -1, -1):
            copy(raw, row * walk.width, numbers, place * channels, channels)
            row = before[row]


@linked
def _convolve(mixer, walk, raw, before, mixed):
    """Convolve the forward's rows and the pending ones."""
    channels, kernel, width = mixer.channels, mixer.kernel, walk.width
    taps = array_at(mixer.taps, kernel * channels, np.float32)
    bias = array_at(mixer.bias, channels if mixer.bias else 0, np.float32)
    places = np.empty(kernel, np.int64)
    for row in range(walk.rows + walk.pending):
        at = row
        for tap in range(kernel - 1, -1, -1):
            places[tap] = at * width
            at = before[at]
        for i in range(0, channels, LANES):
            made = load(bias, i) if mixer.bias else splat(_ZERO)
            for tap in range(kernel):
                made = fma(load(raw, places[tap] + i), load(taps, tap * channels + i), made)
            store(mixed, row * channels + i, made if mixer.kind == CONVOLUTION else activated(made, SILU))


@linked
def _to_unit(x, start, size, scale):
    """``x[start : start + size]`` of length ``scale``."""
    squares, zero = splat(_ZERO), splat(_ZERO)
    for i in range(start, start + size, LANES):
        part = load(x, i)
        squares = fma(part, part, squares)
    factor = splat(np.float32(scale / np.sqrt(total(squares) + _EPS)))
    for i in range(start, start + size, LANES):
        store(x, i, fma(load(x, i), factor, zero))


@linked
def _weigh(mixer, walk, raw, mixed):
    """Compute, for each row's heads, the factor of the state before it and what is added."""
    heads, groups, keys, channels = mixer.heads, mixer.groups, mixer.keys, mixer.channels
    count = (walk.rows + walk.pending) * heads
    decays, rates = array_at(walk.decays, count, np.float32), array_at(walk.rates, count, np.float32)
    rate, step = array_at(mixer.decay, heads, np.float32), array_at(mixer.step, heads, np.float32)
    for row in range(walk.rows + walk.pending):
        start = row * walk.width + channels
        if mixer.kind == DELTA:
            for group in range(groups):
                place = row * channels + group * keys
                _to_unit(mixed, place, keys, _ONE / np.sqrt(np.float32(keys)))
                _to_unit(mixed, place + groups * keys, keys, _ONE)
        for head in range(heads):
            number = row * heads + head
            if mixer.kind == DELTA:
                rates[number] = mixer.rate_scale / (_ONE + np.float32(math.exp(-raw[start + head])))
                time = softplus(raw[start + heads + head] + step[head])
            else:
                time = max(mixer.least, softplus(raw[start + head] + step[head]))
                rates[number] = time
            decays[number] = np.float32(math.exp(rate[head] * time))


@linked
def _norm_selected(mixer, x, start, size, weight):
    if weight != 0:
        norm_part(x, start, size, NormTerms(RMS, array_at(weight, size, np.float32), 0, mixer.eps), 0, x)


@linked
def _select(mixer, walk, mixed, helpers):
    """Make steps, keys and queries of Mamba 1 from what the convolution gives."""
    rows, inner, rank, keys = walk.rows + walk.pending, mixer.channels, mixer.rank, mixer.keys
    chosen = array_at(walk.chosen, rows * mixer.chosen, np.float32)
    low, rates = array_at(walk.low, rows * rank, np.float32), array_at(walk.rates, rows * mixer.timed, np.float32)
    perform(array_at(mixer.choice, 1, JOB)[0], mixed, rows, chosen, helpers)
    for row in range(rows):
        start = row * mixer.chosen
        _norm_selected(mixer, chosen, start, rank, mixer.rank_norm)
        _norm_selected(mixer, chosen, start + rank, keys, mixer.key_norm)
        _norm_selected(mixer, chosen, start + rank + keys, keys, mixer.query_norm)
        copy(chosen, start, low, row * rank, rank)
    perform(array_at(mixer.steps, 1, JOB)[0], low, rows, rates, helpers)
    for row in range(rows):
        for i in range(row * mixer.timed, row * mixer.timed + inner):
            rates[i] = softplus(rates[i])


@linked
def _gate(mixer, rows, qkv, apart, seen):
    """Outputs through the gates, normed on one side of them."""
    inner, zero, gates = mixer.heads * mixer.values, splat(_ZERO), mixer.channels
    weight = array_at(mixer.norm, inner if mixer.kind == SCAN else mixer.normed, np.float32)
    terms = NormTerms(RMS, weight, 0, mixer.eps)
    for row in range(rows):
        start = row * inner
        if mixer.kind == DELTA:
            for at in range(start, start + inner, mixer.normed):
                norm_part(seen, at, mixer.normed, terms, 0, seen)
        for i in range(0, inner, LANES):
            gate = activated(load(qkv, row * apart + gates + i), SILU)
            store(seen, start + i, fma(load(seen, start + i), gate, zero))
        if mixer.kind == SCAN and mixer.norm != 0:
            for at in range(0, inner, mixer.normed):
                norm_part(seen, start + at, mixer.normed, terms, at, seen)


@linked
def mix_states(body, layer, inputs, look, rooms):
    """Fill ``rooms.seen`` of a recurrent layer from ``rooms.normed``, by the matrix ``inputs``. ``look``: a job that
    all layers use in turns."""
    walk, mixer = array_at(body.walk, 1, WALK)[0], array_at(layer.mixer, 1, MIXER)[0]
    channels, every, inner = mixer.channels, walk.rows + walk.pending, mixer.heads * mixer.values
    array_at(body.walk, 1, WALK)[0].mixer = layer.mixer
    rows = rooms.rows
    perform(inputs, rooms.normed, rows, rooms.qkv, rooms.helpers)
    size = walk.total * walk.width
    raw = array_at(walk.raw + 4 * mixer.number * size, size, np.float32)
    before, mixed = array_at(walk.before, walk.total, np.int64), array_at(walk.mixed, every * channels, np.float32)
    _put_in(mixer, walk, rooms.qkv, inputs.apart, raw)
    _convolve(mixer, walk, raw, before, mixed)
    _keep_past(mixer, walk, raw, before)
    if mixer.kind == CONVOLUTION:
        zero = splat(_ZERO)
        for row in range(rows):
            for i in range(0, inner, LANES):
                gate = load(rooms.qkv, row * inputs.apart + inner + i)
                store(rooms.seen, row * inner + i, fma(load(mixed, row * channels + i), gate, zero))
        return
    if mixer.kind == SELECTIVE:
        _select(mixer, walk, mixed, rooms.helpers)
    else:
        _weigh(mixer, walk, raw, mixed)
    look.walk, look.requests = body.walk, walk.count
    look.apart, look.heads = inner, mixer.heads
    perform(look, mixed, rows, rooms.seen, rooms.helpers)
    look.walk = 0
    _gate(mixer, rows, rooms.qkv, inputs.apart, rooms.seen)
