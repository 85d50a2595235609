"""What stands between the matrix products of a layer. Arrays are flat; ``apart``: numbers from a row to the next."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.linking import linked
from actors.engines.decoder.cpu.pairs import store_rounded
from actors.engines.decoder.cpu.records import LANES, PLAIN, RMS
from actors.engines.decoder.cpu.simd import (
    add,
    divided,
    exponential,
    fma,
    larger,
    load,
    smaller,
    splat,
    store,
    total,
    turned,
)

_ZERO, _ONE = np.float32(0), np.float32(1)
SILU, GELU_TANH, GELU, RELU, RELU_SQUARED, CLAMPED_SWIGLU, XIELU = 0, 1, 2, 3, 4, 5, 6
_SLOPE, _EDGE = np.float32(0.5), np.float32(-1e-6)  # XIELU's
_ALPHA, _LIMIT = np.float32(1.702), np.float32(7)  # gpt-oss's
_LEAST = np.float32(-87)  # the exponential of its negative still fits float32


class NormTerms(NamedTuple):
    """``kind``: how it computes; ``bias``: the address of what is added, or 0."""

    kind: Any
    weight: Any
    bias: Any
    eps: Any


class Activation(NamedTuple):
    """Activation of ``inner`` numbers of a row; ``gated``: the result is multiplied with as many more beside them.
    ``positive`` and ``negative``: factors of XIELU."""

    kind: Any
    gated: Any
    inner: Any
    positive: Any
    negative: Any


@linked
def copy(source, start, target, to, count):
    for i in range(count):
        target[to + i] = source[start + i]


@linked
def embed(tokens, table, half, size, out):
    """Their rows of a table at that address, of ``size`` numbers each, in bfloat16 if ``half``."""
    for row in range(len(tokens)):
        if half:
            bits = array_at(table + 2 * size * tokens[row], size, np.int16)
            for i in range(0, size, LANES):
                store(out, row * size + i, load(bits, i))
        else:
            whole = array_at(table + 4 * size * tokens[row], size, np.float32)
            for i in range(0, size, LANES):
                store(out, row * size + i, load(whole, i))


@linked
def scale_rows(x, apart, size, rows, scale):
    """The first ``size`` numbers of every row times ``scale``."""
    if scale == _ONE:
        return
    factor, zero = splat(np.float32(scale)), splat(_ZERO)
    for row in range(rows):
        for i in range(row * apart, row * apart + size, LANES):
            store(x, i, fma(load(x, i), factor, zero))


@linked
def _rms_factor(x, start, size, eps):
    """By what ``x[start : start + size]`` is multiplied to have a mean square of one."""
    squares = splat(_ZERO)
    for i in range(start, start + size, LANES):
        part = load(x, i)
        squares = fma(part, part, squares)
    return _ONE / np.sqrt(total(squares) / np.float32(size) + eps)


@linked
def _centre(x, start, size, out):
    """``x[start : start + size]`` without its mean, into ``out``."""
    sums, one = splat(_ZERO), splat(_ONE)
    for i in range(start, start + size, LANES):
        sums = add(load(x, i), sums)
    mean = splat(-total(sums) / np.float32(size))
    for i in range(start, start + size, LANES):
        store(out, i, fma(load(x, i), one, mean))


@linked
def _scaled(x, start, size, factor, weights, out):
    """``out[start : start + size]``: times a factor and weights, of which some are skipped."""
    weight, skipped = weights
    both, zero = splat(factor), splat(_ZERO)
    for i in range(0, size, LANES):
        store(out, start + i, fma(fma(load(x, start + i), both, zero), load(weight, skipped + i), zero))


@linked
def norm_part(x, start, size, terms, skipped, out):
    """``x[start : start + size]`` normed, into ``out``, with the weights behind the skipped ones."""
    weights = terms.weight, skipped
    if terms.kind == PLAIN:
        _scaled(x, start, size, _ONE, weights, out)
    elif terms.kind == RMS:
        _scaled(x, start, size, _rms_factor(x, start, size, terms.eps), weights, out)
    else:
        _centre(x, start, size, out)
        _scaled(out, start, size, _rms_factor(out, start, size, terms.eps), weights, out)
    if terms.bias != 0:
        more, one = array_at(terms.bias, size, np.float32), splat(_ONE)
        for i in range(0, size, LANES):
            store(out, start + i, fma(load(out, start + i), one, load(more, i)))


@linked
def add_scaled(x, more, apart, scale, size, rows):
    """``x += scale * more``."""
    factor = splat(scale)
    for row in range(rows):
        for i in range(0, size, LANES):
            store(x, row * size + i, fma(load(more, row * apart + i), factor, load(x, row * size + i)))


@linked
def _tanh(vector):
    """One vector's, to within 2e-7."""
    one, two = splat(_ONE), splat(np.float32(2))
    inside = larger(smaller(vector, splat(np.float32(20))), splat(np.float32(-20)))
    return fma(divided(two, add(exponential(fma(inside, two, splat(_ZERO))), one)), splat(-_ONE), one)


@linked
def cap(x, start, end, scale, most):
    """``most * tanh(scale * x / most)`` where it lies; whole vectors, and what is left one by one."""
    factor, times, zero = splat(np.float32(scale / most)), splat(np.float32(most)), splat(_ZERO)
    whole = start + (end - start) // LANES * LANES
    for i in range(start, whole, LANES):
        store(x, i, fma(_tanh(fma(load(x, i), factor, zero)), times, zero))
    for i in range(whole, end):
        x[i] = most * np.float32(math.tanh(scale * x[i] / most))


@linked
def activated(x, activation):
    """A vector of activations; GELU without its hyperbolic tangent is computed elsewhere."""
    zero, one, minus = splat(_ZERO), splat(_ONE), splat(-_ONE)
    if activation == SILU:
        inverse = exponential(fma(larger(x, splat(_LEAST)), minus, zero))
        return divided(x, add(one, inverse))
    if activation == GELU_TANH:  # x * sigmoid(2 u) with u of the tangent
        square = fma(x, x, zero)
        u = fma(fma(square, splat(np.float32(0.044715)), one), x, zero)
        twice = larger(fma(u, splat(np.float32(2 * 0.7978845608028654)), zero), splat(_LEAST))
        return divided(x, add(one, exponential(fma(twice, minus, zero))))
    positive = larger(x, zero)
    return positive if activation == RELU else fma(positive, positive, zero)


@linked
def _gelu(x, start, count):
    """By the error function, where it lies."""
    for i in range(start, start + count):
        x[i] = np.float32(0.5) * x[i] * (_ONE + np.float32(math.erf(x[i] * np.float32(0.7071067811865476))))


@linked
def _xielu(x, start, activation):
    """xIELU in place."""
    for i in range(start, start + activation.inner):
        one = x[i]
        if one > _ZERO:
            made = activation.positive * one * one
        else:
            made = activation.negative * (np.float32(math.expm1(min(one, _EDGE))) - one)
        x[i] = made + _SLOPE * one


@linked
def _clamped(gate, up):
    zero, one, limit = splat(_ZERO), splat(_ONE), splat(_LIMIT)
    gate, up = smaller(gate, limit), larger(smaller(up, limit), splat(-_LIMIT))
    inverse = exponential(fma(larger(gate, splat(_LEAST / _ALPHA)), splat(-_ALPHA), zero))
    return fma(add(up, one), divided(gate, add(one, inverse)), zero)


@linked
def activate(both, apart, out, rows, activation):
    """``activation(gate) * up`` of gate and up side by side, or ``activation(up)``."""
    zero, inner, kind = splat(_ZERO), activation.inner, activation.kind
    for row in range(rows):
        begin = row * apart
        if kind == GELU:
            _gelu(both, begin, inner)
        if kind == XIELU:
            _xielu(both, begin, activation)
        for i in range(0, inner, LANES):
            gate = load(both, begin + i)
            if kind == CLAMPED_SWIGLU:
                gate = _clamped(gate, load(both, begin + inner + i))
            else:
                if kind != GELU and kind != XIELU:
                    gate = activated(gate, kind)
                if activation.gated:
                    gate = fma(gate, load(both, begin + inner + i), zero)
            store(out, row * inner + i, gate)


@linked
def softplus(x):
    return x if x > np.float32(20) else np.float32(math.log1p(math.exp(x)))


@linked
def gate_heads(x, layer, gates, apart, start, rows):
    """Heads of rows times the sigmoids, or each times the softplus, of gates that stand at ``start`` in rows of
    ``apart`` numbers."""
    zero, one, minus = splat(_ZERO), splat(_ONE), splat(-_ONE)
    size, width = layer.queries * layer.width, layer.width
    for row in range(rows):
        if layer.soft_gates:
            for head in range(0, size, width):
                share = splat(softplus(gates[row * apart + start + head]))
                for i in range(row * size + head, row * size + head + width, LANES):
                    store(x, i, fma(load(x, i), share, zero))
            continue
        for i in range(0, size, LANES):
            gate = larger(load(gates, row * apart + start + i), splat(_LEAST))
            share = divided(one, add(one, exponential(fma(gate, minus, zero))))
            store(x, row * size + i, fma(load(x, row * size + i), share, zero))


@linked
def norm_hidden(x, apart, layer_norm, body, rows, out):
    """The first ``body.hidden`` numbers of every row of ``x`` normed, into ``out``."""
    weight = array_at(layer_norm.weight, body.hidden, np.float32)
    terms = NormTerms(layer_norm.kind, weight, layer_norm.bias, body.eps)
    for start in range(0, rows * apart, apart):
        norm_part(x, start, body.hidden, terms, 0, out)


@linked
def join_hidden(rooms, apart, layer_norm, scale, body):
    """``rooms.x += scale * rooms.narrow``, which is normed first if there is a norm behind it."""
    if layer_norm.weight != 0:
        norm_hidden(rooms.narrow, apart, layer_norm, body, rooms.rows, rooms.narrow)
    add_scaled(rooms.x, rooms.narrow, apart, scale, body.hidden, rooms.rows)


@linked
def norm_heads(qkv, apart, rows, layer, body):
    """Heads of every row that are normed, its first ones, where they lie: each, or all of a kind together."""
    width, queries, keys = layer.width, layer.queries * layer.width, layer.own * layer.width
    weights, biases = array_at(layer.heads, layer.normed * width, np.float32), layer.head_biases
    for start in range(0, rows * apart, apart):
        if layer.whole:
            terms = NormTerms(body.norm, weights, np.int64(0), body.eps)
            norm_part(qkv, start, queries, terms, 0, qkv)
            norm_part(qkv, start + queries, keys, terms, queries, qkv)
        else:
            for place in range(0, layer.normed * width, width):
                bias = biases + 4 * place if biases != 0 else np.int64(0)
                norm_part(qkv, start + place, width, NormTerms(body.norm, weights, bias, body.eps), place, qkv)


@linked
def turn(qkv, apart, turns, width, positions, heads):
    """Those ``heads`` of every row turned where they lie, by a table of ``width`` numbers a position."""
    for row in range(len(positions)):
        for head in heads:
            start = row * apart + head * width
            for i in range(0, width, LANES):
                store(qkv, start + i, turned(load(qkv, start + i), load(turns, positions[row] * width + i)))


@linked
def keep_heads(qkv, skipped, pool, look, slots):
    """Every row's heads from ``skipped`` on into its slot of a layer's ``pool``, an address. ``look``: the job that
    attends to them."""
    apart, heads, width, size = look.columns, look.heads, look.width, look.slots
    whole, bits = array_at(pool, heads * size * width, np.float32), array_at(pool, heads * size * width, np.int16)
    for row in range(len(slots)):
        for head in range(heads):
            start, to = row * apart + skipped + head * width, (head * size + slots[row]) * width
            if look.half:
                halved(qkv, start, bits, to, width)
            else:
                for i in range(0, width, LANES):
                    store(whole, to + i, load(qkv, start + i))


@linked
def halved(source, start, target, to, count):
    """float32 into the bits of bfloat16, rounded to the nearest, ties to even."""
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):  # a loop over single numbers took a fifth of a forward of eight rows
        store_rounded(target, to + i, load(source, start + i))
    bits = array_at(source.ctypes.data, len(source), np.uint32)
    for i in range(whole, count):
        known = bits[start + i]
        rounded = known + np.uint32(0x7FFF) + ((known >> np.uint32(16)) & np.uint32(1))
        target[to + i] = np.int16(rounded >> np.uint32(16))
