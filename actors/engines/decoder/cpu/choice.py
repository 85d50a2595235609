"""Sampling, compiled by numba: the token of a target's row, and the likeliest few of a draft's row.

A target's token is the one that :mod:`actors.engines.sampling.sampler` chooses. Logarithms and sums differ from torch's
in the last places, so near ties could differ too. Such rows are found (the second best score is too near, or the
nucleus ends too near to the token; one row of some 25,000 without filters) and given back as ``UNSURE``. The others
cost an upper bound of each token's noise, which needs no logarithm, and the exact noise of a few dozen tokens. Drafts
need not agree with torch in the last places.
"""

from __future__ import annotations

import numpy as np
from numba import from_dtype, types

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.linking import kept, linked
from actors.engines.decoder.cpu.noise_tiles import consecutive, gumbel_tile, noise_limit_tile
from actors.engines.decoder.cpu.records import CHOICE, LANES
from actors.engines.decoder.cpu.simd import (
    add,
    exponential,
    fma,
    highest,
    larger,
    load,
    only_from,
    reaches,
    splat,
    store,
    total,
)

UNSURE = -1
_ZERO, _ONE = np.float32(0), np.float32(1)
# Noise is at most 22.2, where float32 numbers are 2e-6 apart; its logarithms err by a few of these steps, and the
# rest of a score by a few of its own last places.
_NEAR, _LAST_PLACES = np.float32(3e-5), np.float32(4 * 2.0**-23)
_UNSURE_MASS = 1e-5  # share of the row's mass: sums of 150,000 float32 parts differ by 1e-6
_SAME = np.float32(1e-5)  # scaled logits nearer to each other may have the same probability
# A draft's nucleus ends above e^-20 of the likeliest token's probability, to within 1e-4 of a scaled logit.
_WIDEST, _HALVINGS = np.float32(20), 18
_LAST = np.float32(-1e30)  # score of tokens that a filter removed: behind all others, each id once
STRIDE = 4 * LANES  # logits compared at once with the best so far: hardly ever is one of them larger
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@linked
def _mix(z):
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@linked
def _keys(seed, position):
    """:func:`actors.noise.keys`."""
    z = _mix(_mix(seed + _STEP) + (position + np.uint64(1)) * _STEP)
    return np.uint32(z >> np.uint64(32)), np.uint32(z & np.uint64(0xFFFFFFFF))


@linked
def _top(logits):
    best = load(logits, 0)
    for i in range(0, len(logits), LANES):
        best = larger(load(logits, min(i, len(logits) - LANES)), best)
    return highest(best)


@linked
def _value(order):
    """The number that stands at that place in the order of all: floats' bits, where they are negative counted down."""
    return np.int32(order if order >= 0 else order ^ 0x7FFFFFFF).view(np.float32)


@linked
def _order(value):
    known = np.int64(np.float32(value).view(np.int32))
    return known if known >= 0 else known ^ 0x7FFFFFFF


@linked
def _count(logits, least):
    """How many are at least that; 2**24 at most."""
    counts, one = splat(_ZERO), splat(_ONE)
    whole = len(logits) // LANES * LANES
    for i in range(0, whole, LANES):
        counts = add(counts, only_from(load(logits, i), least, one))
    count = np.int64(total(counts))
    for i in range(whole, len(logits)):
        count += logits[i] >= least
    return count


@linked
def _nth(logits, count):
    """The value of the ``count``th largest."""
    low, high = _order(np.float32(-np.inf)), _order(_top(logits))  # at least so many from ``low`` on, fewer above high
    while low < high:
        middle = (low + high + 1) // 2
        if _count(logits, _value(middle)) >= count:
            low = middle
        else:
            high = middle - 1
    return _value(low)


@linked
def _mass(logits, factor, top, least):
    """The sum of ``exp(scaled - top)`` over scaled logits from ``least`` on."""
    sums, zero, one, less, times = splat(_ZERO), splat(_ZERO), splat(_ONE), splat(-top), splat(factor)
    whole = len(logits) // LANES * LANES
    for i in range(0, whole, LANES):
        scaled = fma(load(logits, i), times, zero)
        sums = add(sums, only_from(scaled, least, exponential(fma(scaled, one, less))))
    mass = np.float64(total(sums))
    for i in range(whole, len(logits)):
        if logits[i] * factor >= least:
            mass += np.exp(logits[i] * factor - top)
    return mass


@linked
def _largest(logits, ids, values):
    """The largest of ``logits``, best first and lower ids before higher ones, into ``ids`` and ``values``."""
    count = len(ids)
    for place in range(count):
        values[place], ids[place] = -np.inf, 0
    for start in range(0, len(logits), STRIDE):
        end = min(start + STRIDE, len(logits))
        if end == start + STRIDE:
            top = load(logits, start)
            for i in range(start + LANES, end, LANES):
                top = larger(load(logits, i), top)
            if highest(top) <= values[count - 1]:
                continue
        for i in range(start, end):
            value = logits[i]
            if value > values[count - 1]:
                place = count - 1
                while place > 0 and value > values[place - 1]:
                    values[place], ids[place] = values[place - 1], ids[place - 1]
                    place -= 1
                values[place], ids[place] = value, i


@linked
def _best(scores, ids, probabilities):
    """The likeliest ids of a row, best first, and their probabilities."""
    _largest(scores, ids, probabilities)
    top = probabilities[0]
    mass = np.float32(_mass(scores, _ONE, top, np.float32(-np.inf)))
    for place in range(len(ids)):
        probabilities[place] = np.exp(probabilities[place] - top) / mass


@linked
def _noisy_best(logits, factor, keys, least, tile):
    """The best of the scaled logits from ``least`` on with their noise, or ``UNSURE``. ``tile``: room for a vector."""
    one, other = keys
    token, best, second, times = UNSURE, np.float32(-np.inf), np.float32(-np.inf), splat(factor)
    need = best
    for start in range(0, len(logits), LANES):  # the last vector begins early and repeats some numbers
        first = min(start, len(logits) - LANES)
        own = load(logits, first)
        tokens = consecutive(np.uint32(first))
        if not reaches(fma(own, times, noise_limit_tile(tokens, one, other)), need):
            continue
        store(tile, 0, fma(own, times, gumbel_tile(tokens, one, other)))
        for i in range(LANES):
            score = tile[i]
            if score >= need and first + i != token and logits[first + i] * factor >= least:
                if score > best:
                    token, best, second = first + i, score, best
                    need = best - (_NEAR + _LAST_PLACES * abs(best))
                else:
                    second = max(second, score)
    return token if second < need else UNSURE


@linked
def _filters(row, logits):
    """The least scaled logit that ``top_k`` and ``min_p`` leave; where they are needed, the largest, and the mass of
    what ``top_k`` leaves."""
    least, top, kept = np.float32(-np.inf), _ZERO, 0.0
    if 0 < row.top_k < len(logits):
        least = _nth(logits, row.top_k) * row.colder
    if row.top_p < 1 or row.min_p > -np.inf:
        top = _top(logits) * row.colder
    if row.top_p < 1:
        kept = _mass(logits, row.colder, top, least)
    if row.min_p > -np.inf:
        least = max(least, top + row.min_p)
    return least, top, kept


@linked
def _choose(row, logits, tile):
    if row.colder == 0:
        place = np.empty(1, np.int64)
        _largest(logits, place, tile[:1])
        return place[0]
    factor, keys = row.colder, _keys(row.seed, row.position)
    least, top, kept = _filters(row, logits)
    if not kept < np.inf:  # a logit is infinite or not a number, and no nucleus would end
        return UNSURE
    while True:
        token = _noisy_best(logits, factor, keys, least, tile)
        if row.top_p == 1 or token == UNSURE:
            return token
        scaled = logits[token] * factor
        above = max(scaled + _SAME, np.nextafter(scaled, np.float32(np.inf)))
        before = _mass(logits, factor, top, scaled - _SAME) - np.exp(scaled - top)
        if before < (row.top_p - _UNSURE_MASS) * kept:
            return token
        if _mass(logits, factor, top, above) <= (row.top_p + _UNSURE_MASS) * kept:
            return UNSURE
        least = above  # the nucleus ends above it


@linked
def _nucleus(logits, factor, top, least, wanted):
    """The least scaled logit of the likeliest that together have the mass ``wanted``, near enough."""
    low, high = max(least, top - _WIDEST), top
    for _ in range(_HALVINGS):
        middle = (low + high) / np.float32(2)
        if _mass(logits, factor, top, middle) >= wanted:
            low = middle
        else:
            high = middle
    return low


@linked
def _rank(row, logits, tokens, scores, ids, probabilities):
    if row.colder == 0:
        _best(logits, ids, probabilities)
        return
    factor, (one, other) = row.colder, _keys(row.seed, row.position)
    least, top, kept = _filters(row, logits)
    if row.top_p < 1:
        least = _nucleus(logits, factor, top, least, row.top_p * kept)
    times = splat(factor)
    for start in range(0, len(logits), LANES):
        first = min(start, len(logits) - LANES)
        known = load(tokens, first) if len(tokens) else consecutive(np.uint32(first))
        store(scores, first, fma(load(logits, first), times, gumbel_tile(known, one, other)))
    if least > -np.inf:
        for i in range(len(logits)):
            if logits[i] * factor < least:
                scores[i] = _LAST
    _best(scores, ids, probabilities)


_rows, _logits = types.Array(from_dtype(CHOICE), 1, "C"), types.Array(types.float32, 2, "A")


@linked
def _row(logits, at):
    return array_at(logits[at].ctypes.data, logits.shape[1], np.float32)


@kept(types.void(_rows, _logits, types.Array(types.int64, 1, "A")))
def choose_rows(rows, logits, tokens):
    """The token of each row of ``logits``, of which there are at least ``LANES``, side by side; ``UNSURE`` where torch
    has to tell."""
    tile = np.empty(LANES, np.float32)
    for at in range(len(rows)):
        tokens[at] = _choose(rows[at], _row(logits, at), tile)


@kept(
    types.void(
        *[_rows, _logits, types.Array(types.int32, 1, "C")],
        *[types.Array(types.int64, 2, "C"), types.Array(types.float32, 2, "C")],
    )
)
def rank_rows(rows, logits, tokens, ids, probabilities):
    """The likeliest ``ids`` of each row of ``logits``, with its noise, best first, and their probabilities.
    ``tokens``: the id of each column, ascending; none: its number."""
    scores = np.empty(logits.shape[1], np.float32)
    for at in range(len(rows)):
        known = array_at(tokens.ctypes.data, len(tokens), np.float32)
        _rank(rows[at], _row(logits, at), known, scores, ids[at], probabilities[at])
        if len(tokens):
            for place in range(ids.shape[1]):
                ids[at, place] = tokens[ids[at, place]]
