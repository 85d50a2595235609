"""The likeliest ids of a row of logits, with and without the shared noise, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit, types

from actors.engines.backends.compiled.atomics import array_at
from actors.engines.backends.compiled.noise_tiles import gumbel_tile
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

STRIDE = 4 * LANES  # logits that are compared with what is known at once: hardly ever is one of them larger
_ZERO, _ONE = np.float32(0), np.float32(1)


@njit(error_model="numpy")
def largest(logits, ids, values):
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


@njit(error_model="numpy")
def _mass(logits, top):
    """The sum of ``exp(logits - top)``."""
    sums, one, less = splat(_ZERO), splat(_ONE), splat(-top)
    whole = len(logits) // LANES * LANES
    for i in range(0, whole, LANES):
        sums = add(sums, exponential(fma(load(logits, i), one, less)))
    mass = total(sums)
    for i in range(whole, len(logits)):
        mass += np.exp(logits[i] - top)
    return mass


@njit(error_model="numpy")
def _rank(logits, ids, probabilities):
    """The likeliest ids of a row, best first, and their probabilities."""
    largest(logits, ids, probabilities)
    top = probabilities[0]
    mass = _mass(logits, top)
    for place in range(len(ids)):
        probabilities[place] = np.exp(probabilities[place] - top) / mass


_kept = {"cache": True, "error_model": "numpy"}
_rows, _floats = types.Array(types.float32, 2, "A"), types.Array(types.float32, 1, "C")
_ids, _found = types.Array(types.int64, 2, "C"), types.Array(types.float32, 2, "C")


@njit(types.void(_rows, _ids, _found), **_kept)
def rank_rows(logits, ids, probabilities):
    """The likeliest ``ids`` of every row, best first, their probabilities. Each row of ``logits`` is in one piece."""
    for row in range(len(ids)):
        start = logits.ctypes.data + row * logits.strides[0]
        _rank(array_at(start, logits.shape[1], np.float32), ids[row], probabilities[row])


@njit(types.void(_rows, types.Array(types.uint32, 2, "C"), _floats, _floats, _ids, _found), **_kept)
def rank_noisy_rows(logits, keys, colder, scores, ids, probabilities):
    """:func:`rank_rows` of ``logits * colder`` and each position's noise. ``scores``: room for those of a row, 16
    at least."""
    for row in range(len(ids)):
        own = array_at(logits.ctypes.data + row * logits.strides[0], len(scores), np.float32)
        size, factor = len(scores), splat(colder[row])
        for token in range(0, size, LANES):  # the last vector begins early: what it has in common is the same
            first = max(0, min(token, size - LANES))
            noise = gumbel_tile(np.uint32(first), keys[row, 0], keys[row, 1])
            store(scores, first, fma(load(own, first), factor, noise))
        _rank(scores, ids[row], probabilities[row])
