"""Mixtures of experts, compiled by numba: each row's experts, and the sums of their outputs.

Rows of one expert are multiplied together, and each row's sum runs over its own experts in ascending order. So neither
the rows beside it nor their experts change a row's bits. A row takes each expert once at most, whatever its scores are:
so an expert never gets more rows than it has room for.
"""

from __future__ import annotations

import math

import numpy as np

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.between import Activation, activate, copy
from actors.engines.decoder.cpu.linking import linked
from actors.engines.decoder.cpu.records import JOB, LANES
from actors.engines.decoder.cpu.simd import fma, load, splat, store
from actors.engines.decoder.cpu.team import perform

_ZERO, _ONE = np.float32(0), np.float32(1)


@linked
def sigmoid(x):
    return np.float32(_ONE / (_ONE + np.float32(math.exp(-x))))


@linked
def _score(logits, start, experts, scores):
    """Turn a row's logits, ``logits[start:]``, into scores of experts."""
    count, top, whole = experts.count, logits[start], _ZERO
    for i in range(count):
        top = max(top, logits[start + i])
    for i in range(count):
        if experts.sigmoid:
            scores[i] = sigmoid(logits[start + i])
        else:
            scores[i] = np.float32(math.exp(logits[start + i] - top))
            whole += scores[i]
    if not experts.sigmoid:
        for i in range(count):
            scores[i] /= whole


@linked
def _take(scores, free, first, end):
    """Take the best free score and return its place, the first of equal ones. NaN counts as the best, so that it shows
    in the output. At least one must be free."""
    best = -1
    for i in range(first, end):
        if free[i] and (best < 0 or (scores[best] == scores[best] and not scores[i] <= scores[best])):
            best = i
    free[best] = False
    return best


@linked
def _leave_groups(scores, experts, free):
    """Free the experts of the best groups alone."""
    size = experts.count // experts.groups
    totals, groups = np.zeros(experts.groups, np.float32), np.ones(experts.groups, np.bool_)
    for group in range(experts.groups):
        for _ in range(experts.best):
            totals[group] += scores[_take(scores, free, group * size, (group + 1) * size)]
    for _ in range(experts.used_groups):
        _take(totals, groups, 0, experts.groups)
    for i in range(experts.count):
        free[i] = not groups[i // size]


@linked
def _route(logits, apart, rows, experts, chosen, shares):
    """Choose ``experts.used`` experts for each row, and their shares."""
    count, used = experts.count, experts.used
    scores, candidates, free = np.empty(count, np.float32), np.empty(count, np.float32), np.empty(count, np.bool_)
    for row in range(rows):
        _score(logits, row * apart, experts, scores)
        copy(logits if experts.raw else scores, row * apart if experts.raw else 0, candidates, 0, count)
        if experts.correction != 0:
            correction = array_at(experts.correction, count, np.float32)
            for i in range(count):
                candidates[i] += correction[i]
        free[:] = True
        if experts.groups > 1:
            _leave_groups(candidates, experts, free)
        whole = _ZERO
        for place in range(row * used, (row + 1) * used):
            chosen[place] = _take(candidates, free, 0, count)
            shares[place] = scores[chosen[place]]
            whole += shares[place]
        for place in range(row * used, (row + 1) * used):
            shares[place] *= experts.scale / whole if experts.divided else experts.scale
            if experts.scales != 0:
                shares[place] *= array_at(experts.scales, count, np.float32)[chosen[place]]


@linked
def _grouped(chosen, count):
    """Sort the places of ``chosen`` by expert, and find where each expert's begin."""
    begins, places = np.zeros(count + 1, np.int64), np.empty(len(chosen), np.int64)
    for expert in chosen:
        begins[expert + 1] += 1
    for expert in range(count):
        begins[expert + 1] += begins[expert]
    filled = begins[:count].copy()
    for place in range(len(chosen)):
        places[filled[chosen[place]]] = place
        filled[chosen[place]] += 1
    return begins, places


@linked
def _add_row(x, start, more, begin, share, size):
    factor = splat(share)
    for i in range(0, size, LANES):
        store(x, start + i, fma(load(more, begin + i), factor, load(x, start + i)))


@linked
def mix_experts(experts, hidden, rooms):
    """Fill ``rooms.narrow`` with the summed outputs of each row's experts for ``rooms.normed``, chosen by
    ``rooms.routed``."""
    router, rows = array_at(experts.router, 1, JOB)[0], rooms.rows
    jobs = array_at(experts.jobs, 2 * experts.count, JOB)
    used = experts.used
    chosen, shares = np.empty(rows * used, np.int64), np.empty(rows * used, np.float32)
    _route(rooms.routed, router.apart, rows, experts, chosen, shares)
    begins, places = _grouped(chosen, experts.count)
    apart = jobs[1].apart
    rooms.narrow[: rows * apart] = _ZERO
    for expert in range(experts.count):
        first, number = begins[expert], begins[expert + 1] - begins[expert]
        if number == 0:
            continue
        for at in range(number):
            place = places[first + at]
            factor = splat(shares[place] if experts.inside else _ONE)
            for i in range(0, hidden, LANES):
                part = load(rooms.normed, place // used * hidden + i)
                store(rooms.gathered, at * hidden + i, fma(part, factor, splat(_ZERO)))
        up, down = jobs[2 * expert], jobs[2 * expert + 1]
        perform(up, rooms.gathered, number, rooms.both, rooms.helpers)
        activation = Activation(experts.activation, experts.gated, experts.inner, _ZERO, _ZERO)
        activate(rooms.both, up.apart, rooms.activated, number, activation)
        perform(down, rooms.activated, number, rooms.given, rooms.helpers)
        for at in range(number):
            place = places[first + at]
            share = _ONE if experts.inside else shares[place]
            _add_row(rooms.narrow, place // used * apart, rooms.given, at * apart, share, hidden)
