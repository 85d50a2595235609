"""The likeliest ids of a row of logits, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from actors.engines.decoder.cpu.simd import (
    LANES,
    add,
    exponential,
    fma,
    highest,
    larger,
    load,
    splat,
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
def rank(logits, ids, probabilities):
    """The likeliest ids of a row, best first, and their probabilities."""
    largest(logits, ids, probabilities)
    top = probabilities[0]
    mass = _mass(logits, top)
    for place in range(len(ids)):
        probabilities[place] = np.exp(probabilities[place] - top) / mass
