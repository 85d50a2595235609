"""What stands between the matrix products of a layer, in float32, compiled by numba (the extra ``duoactor[jit]``).

A row's sums run over the slots that it sees, in their order, and over nothing else: so its bits depend neither on the
rows beside it, nor on the span, nor on where in the pool a branch of a window lies (DESIGN section 3). Each kernel does
in one call what takes torch up to ten. All are compiled when this module is imported, once per machine: numba keeps
them on disk. It needs widths that are multiples of ``LANES``.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from actors.engines.backends.llama.simd import LANES, fma, load, splat, total
from actors.engines.backends.llama.team import Attention, Team, product
from actors.engines.backends.llama.tile import PANEL

__all__ = [
    "LANES",
    "PANEL",
    "Attention",
    "Team",
    "add_and_norm",
    "collect",
    "gated",
    "norm",
    "product",
    "turn_and_store",
]

_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_LARGEST = np.float32(87)  # whose exponential float32 still holds, and its inverse too
_kept = {"cache": True, "error_model": "numpy"}


@njit(error_model="numpy")
def _exp(x):
    """Up to ``_LARGEST``, without a call, so that loops over it become vectors (Cephes' expf)."""
    x = max(x, -_LARGEST)
    power = np.floor(x * np.float32(1.44269504088896341) + _HALF)
    x = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * x + np.float32(1.3981999507e-3)
    y = y * x + np.float32(8.3334519073e-3)
    y = y * x + np.float32(4.1665795894e-2)
    y = y * x + np.float32(1.6666665459e-1)
    y = y * x + np.float32(5.0000001201e-1)
    y = y * x * x + x + _ONE
    return y * np.int32((np.int32(power) + 127) << 23).view(np.float32)


@njit(error_model="numpy")
def _rms_factor(x, start, size, eps):
    """By what ``x[start : start + size]`` is multiplied to have a mean square of one."""
    squares = splat(_ZERO)
    for i in range(start, start + size, LANES):
        part = load(x, i)
        squares = fma(part, part, squares)
    return _ONE / np.sqrt(total(squares) / np.float32(size) + eps)


@njit("void(f4[:, ::1], f4[::1], f4, f4[:, ::1])", **_kept)
def norm(x, weight, eps, out):
    """RMS norm of every row of ``x`` into ``out``."""
    size = x.shape[1]
    flat = x.reshape(-1)
    for row in range(x.shape[0]):
        factor = _rms_factor(flat, row * size, size, eps)
        for i in range(size):
            out[row, i] = x[row, i] * factor * weight[i]


@njit("void(f4[:, ::1], f4[:, ::1], f4, f4[::1], f4, f4[:, ::1])", **_kept)
def add_and_norm(x, more, scale, weight, eps, out):
    """``x += scale * more``, then its norm."""
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[row, i] += scale * more[row, i]
    norm(x, weight, eps, out)


@njit("void(f4[:, ::1], f4[:, ::1])", **_kept)
def gated(both, out):
    """``silu(gate) * up`` of gate and up side by side."""
    rows, inner = out.shape
    for row in range(rows):
        for i in range(inner):
            gate = both[row, i]
            out[row, i] = gate / (_ONE + _exp(min(-gate, _LARGEST))) * both[row, inner + i]


@njit("void(f4[:, ::1], f4[:, ::1], f4[:, ::1], f4, f4[:, :, ::1], f4[:, :, ::1], i8[::1])", **_kept)
def turn_and_store(qkv, turns, weight, eps, keys, values, slots):
    """Queries and keys normed (unless ``weight`` has no rows) and turned where they lie; keys and values written into
    the pool's ``slots``, one per row. ``turns``: cosine and sine of every pair ``(rows, width)``."""
    kv_heads, _, width = keys.shape
    turned = qkv.shape[1] // width - kv_heads
    heads = turned - kv_heads
    flat = qkv.reshape(-1)
    for row in range(len(slots)):
        for head in range(turned):
            start = head * width
            if len(weight):
                factor = _rms_factor(flat, row * qkv.shape[1] + start, width, eps)
                for i in range(width):
                    qkv[row, start + i] *= factor * weight[head, i]
            for i in range(width // 2):
                cosine, sine = turns[row, 2 * i], turns[row, 2 * i + 1]
                x, y = qkv[row, start + 2 * i], qkv[row, start + 2 * i + 1]
                qkv[row, start + 2 * i] = x * cosine - y * sine
                qkv[row, start + 2 * i + 1] = x * sine + y * cosine
        for head in range(kv_heads):
            keys[head, slots[row]] = qkv[row, (heads + head) * width : (heads + head + 1) * width]
            values[head, slots[row]] = qkv[row, (turned + head) * width : (turned + head + 1) * width]


@njit("void(b1[:, ::1], i8, i8, i8[:, ::1], i8[::1])", **_kept)
def collect(visible, base, first, places, counts):
    """The slots that rows ``first ..`` see of a segment at ``base``, in order, and how many they are. The last one is
    repeated up to a whole vector."""
    for row in range(visible.shape[0]):
        count = 0
        for slot in range(visible.shape[1]):
            if visible[row, slot]:
                places[first + row, count] = base + slot
                count += 1
        counts[first + row] = count
        for more in range(count, (count + LANES - 1) // LANES * LANES):
            places[first + row, more] = places[first + row, count - 1]
