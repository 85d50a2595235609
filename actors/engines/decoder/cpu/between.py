"""What stands between the matrix products of a layer. Arrays are flat; ``apart``: numbers from a row to the next."""

from __future__ import annotations

import numpy as np
from numba import njit

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.pairs import store_rounded
from actors.engines.decoder.cpu.simd import (
    LANES,
    add,
    divided,
    exponential,
    fma,
    larger,
    load,
    splat,
    store,
    total,
    turned,
)

_ZERO, _ONE = np.float32(0), np.float32(1)
_LEAST = np.float32(-87)  # whose negative's exponential float32 still holds


@njit(error_model="numpy")
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


@njit(error_model="numpy")
def _rms_factor(x, start, size, eps):
    """By what ``x[start : start + size]`` is multiplied to have a mean square of one."""
    squares = splat(_ZERO)
    for i in range(start, start + size, LANES):
        part = load(x, i)
        squares = fma(part, part, squares)
    return _ONE / np.sqrt(total(squares) / np.float32(size) + eps)


@njit(error_model="numpy")
def _scaled(x, start, size, factor, weight, skipped, out):
    """``out[start : start + size]``: times a factor and the weights from ``skipped`` on."""
    both, zero = splat(factor), splat(_ZERO)
    for i in range(0, size, LANES):
        store(out, start + i, fma(fma(load(x, start + i), both, zero), load(weight, skipped + i), zero))


@njit(error_model="numpy")
def norm(x, weight, eps, out, rows):
    """RMS norm of every row of ``x`` into ``out``."""
    size = len(weight)
    for start in range(0, rows * size, size):
        _scaled(x, start, size, _rms_factor(x, start, size, eps), weight, 0, out)


@njit(error_model="numpy")
def add_and_norm(x, more, apart, scale, weight, eps, out, rows):
    """``x += scale * more``, then its norm."""
    size, factor = len(weight), splat(scale)
    for row in range(rows):
        for i in range(0, size, LANES):
            store(x, row * size + i, fma(load(more, row * apart + i), factor, load(x, row * size + i)))
    norm(x, weight, eps, out, rows)


@njit(error_model="numpy")
def gated(both, apart, out, rows, inner):
    """``silu(gate) * up`` of gate and up side by side."""
    zero, one, minus = splat(_ZERO), splat(_ONE), splat(-_ONE)
    for row in range(rows):
        for i in range(0, inner, LANES):
            gate = load(both, row * apart + i)
            inverse = exponential(fma(larger(gate, splat(_LEAST)), minus, zero))
            up = load(both, row * apart + inner + i)
            store(out, row * inner + i, fma(divided(gate, add(one, inverse)), up, zero))


@njit(error_model="numpy")
def turn(qkv, apart, turns, positions, norms, eps, heads):
    """The first ``heads`` of every row normed (unless the address ``norms`` is 0) and turned where they lie."""
    width = turns.shape[1]
    angles = turns.reshape(-1)
    for row in range(len(positions)):
        for head in range(heads):
            start = row * apart + head * width
            if norms != 0:
                weight = array_at(norms, heads * width, np.float32)
                _scaled(qkv, start, width, _rms_factor(qkv, start, width, eps), weight, head * width, qkv)
            for i in range(0, width, LANES):
                store(qkv, start + i, turned(load(qkv, start + i), load(angles, positions[row] * width + i)))


@njit(error_model="numpy")
def keep_heads(qkv, apart, skipped, pool, half, heads, width, size, slots):
    """Every row's ``heads`` from ``skipped`` on into its slot of a layer's ``pool``: an address of ``size`` slots for
    each head, in bfloat16 if ``half``."""
    whole, bits = array_at(pool, heads * size * width, np.float32), array_at(pool, heads * size * width, np.int16)
    for row in range(len(slots)):
        for head in range(heads):
            start, to = row * apart + skipped + head * width, (head * size + slots[row]) * width
            if half:
                halved(qkv, start, bits, to, width)
            else:
                for i in range(0, width, LANES):
                    store(whole, to + i, load(qkv, start + i))


@njit(error_model="numpy")
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
