"""Products of few rows with a matrix, compiled by numba: every output is one sum over the inputs in their order.

So a row's bits do not depend on the rows beside it, without rows that only fill up; and a small matrix costs no calls.
For processors with AVX-512, whose registers hold the sums of four rows by ``PANEL`` outputs.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from actors.engines.backends.llama.simd import LANES, fma, load, splat, store

PANEL = 4 * LANES  # outputs whose weights lie together: (outputs / PANEL, inputs, PANEL)
_ZERO = np.float32(0)


@njit(error_model="numpy")
def _store(out, at, a, b, c, d):
    store(out, at, a)
    store(out, at + LANES, b)
    store(out, at + 2 * LANES, c)
    store(out, at + 3 * LANES, d)


@njit(error_model="numpy")
def _one_row(x, row, size, weights, start, step, out, columns, at):
    """``2 * PANEL`` outputs, ``step`` weights apart: so many sums hide the time of an addition."""
    a = b = c = d = e = f = g = h = splat(_ZERO)
    for k in range(size):
        value, near = splat(x[row * size + k]), start + k * PANEL
        far = near + step
        a = fma(value, load(weights, near), a)
        b = fma(value, load(weights, near + LANES), b)
        c = fma(value, load(weights, near + 2 * LANES), c)
        d = fma(value, load(weights, near + 3 * LANES), d)
        e = fma(value, load(weights, far), e)
        f = fma(value, load(weights, far + LANES), f)
        g = fma(value, load(weights, far + 2 * LANES), g)
        h = fma(value, load(weights, far + 3 * LANES), h)
    _store(out, row * columns + at, a, b, c, d)
    if step:
        _store(out, row * columns + at + PANEL, e, f, g, h)


@njit(error_model="numpy")
def _four_rows(x, rows, size, weights, start, out, columns, at):
    """``PANEL`` outputs of four rows, whose weights are read once. Rows may repeat."""
    first, second, third, fourth = rows
    a = b = c = d = e = f = g = h = splat(_ZERO)
    i = j = m = n = o = p = r = s = splat(_ZERO)
    for q in range(size):
        near = start + q * PANEL
        u, v = load(weights, near), load(weights, near + LANES)
        y, z = load(weights, near + 2 * LANES), load(weights, near + 3 * LANES)
        value = splat(x[first * size + q])
        a, b, c, d = fma(value, u, a), fma(value, v, b), fma(value, y, c), fma(value, z, d)
        value = splat(x[second * size + q])
        e, f, g, h = fma(value, u, e), fma(value, v, f), fma(value, y, g), fma(value, z, h)
        value = splat(x[third * size + q])
        i, j, m, n = fma(value, u, i), fma(value, v, j), fma(value, y, m), fma(value, z, n)
        value = splat(x[fourth * size + q])
        o, p, r, s = fma(value, u, o), fma(value, v, p), fma(value, y, r), fma(value, z, s)
    _store(out, first * columns + at, a, b, c, d)
    _store(out, second * columns + at, e, f, g, h)
    _store(out, third * columns + at, i, j, m, n)
    _store(out, fourth * columns + at, o, p, r, s)


@njit(error_model="numpy")
def multiply_pair(x, rows, size, weights, panel, panels, out, columns):
    """The outputs of two neighbouring panels, or of the last one, for all rows."""
    step, last, end = size * PANEL, rows - 1, min(panel + 2, panels)
    many = rows if rows % 4 != 1 else last  # by four; two and three rows are made four
    for each in range(panel, end):
        for row in range(0, many, 4):
            four = (row, row + 1, min(row + 2, last), min(row + 3, last))
            _four_rows(x, four, size, weights, each * step, out, columns, each * PANEL)
    if many < rows:
        _one_row(x, last, size, weights, panel * step, (end - panel - 1) * step, out, columns, panel * PANEL)


@njit(
    ["void(f4[:, ::1], u2[:, :, ::1], f4[:, ::1])", "void(f4[:, ::1], f4[:, :, ::1], f4[:, ::1])"],
    cache=True,
    nogil=True,  # the verifier's sockets are served meanwhile
    error_model="numpy",
)
def multiply(x, weights, out):
    """``out = x W^T`` for weights in panels, float32 or the bits of float16."""
    rows, size = x.shape
    panels, columns = weights.shape[0], out.shape[1]
    inputs, outputs, flat = x.reshape(-1), out.reshape(-1), weights.reshape(-1)
    for panel in range(0, panels, 2):
        multiply_pair(inputs, rows, size, flat, panel, panels, outputs, columns)
