"""Products of few rows with a matrix, compiled by numba: every output is one sum over the inputs in their order.

So a row's bits do not depend on the rows beside it, without rows that only fill up; and a small matrix costs no calls.
The sums of ``ROWS`` rows by ``PANEL`` outputs stay in registers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from actors.engines.backends.compiled.atomics import array_at
from actors.engines.backends.compiled.formats import GROUP, PANEL, ROWS, TABLE, TWELVE
from actors.engines.backends.compiled.tile import multiply_tile

# Inputs whose weights in a panel stay in the second cache (96 KiB in 16 bits) while rows pass by in eights
DEPTH = 1024
NEAR = 8192  # bytes between the weights that one pass computes with and those that it asks for
# Of 12 bits, where several passes read them unpacked from the first cache, of 48 KiB. Sixteen rows of 91M parameters:
# 9.8 ms with 128, 9.6 with 256, 11.1 with 512
UNPACKED_DEPTH = 128
ROOM = UNPACKED_DEPTH * PANEL // 2  # pairs of bfloat16

# A weight that stands beside its matrix: what the code of 12 bits cannot say
ESCAPE = np.dtype([("input", np.int32), ("output", np.int32), ("weight", np.float32)])


@njit(error_model="numpy")
def multiply_panels(x, rows, size, weights, panel, count, out, to, columns):
    """The outputs of ``count`` panels, which begin at ``out[to]``, for all rows of ``size`` elements each."""
    passes = (rows + ROWS - 1) // ROWS
    for k in range(0, size, DEPTH):
        depth, start, wide = min(DEPTH, size - k), (panel * size + k) * PANEL, PANEL * weights.itemsize
        for number in range(passes):
            row, following = rows * number // passes, rows * (number + 1) // passes
            # by the end of the last pass all weights that the next passes read have been asked for
            ahead = depth * (passes - 1 + number) // passes * wide + NEAR
            multiply_tile(
                *(following - row, count, x, row * size + k, size, weights, start, size * PANEL, depth, out),
                *(row * columns + to, columns),
                *(k > 0, weights.ctypes.data + start * weights.itemsize + ahead, wide // passes, None),
            )


@njit(error_model="numpy")
def multiply_packed_panels(x, rows, size, share, weights, panel, count, out, to, columns, room):
    """The same with weights of 12 bits, which are unpacked once. ``share``: inputs in an element of ``x``; ``room``:
    for ``ROOM`` pairs. ``count``: 1 where there are more than ``ROWS`` rows."""
    passes, wide = (rows + ROWS - 1) // ROWS, share * TWELVE
    most = (DEPTH if passes == 1 else UNPACKED_DEPTH) // share
    for k in range(0, size, most):
        depth, start = min(most, size - k), TABLE + (panel * size + k) * wide
        for number in range(passes):
            row, following = rows * number // passes, rows * (number + 1) // passes
            at, there = row * size + k, row * columns + to
            ahead = weights.ctypes.data + start + depth * (passes - 1 + number) // passes * wide + NEAR
            if passes == 1:
                multiply_tile(
                    *(rows, count, x, at, size, weights, start, size * wide, depth, out, there, columns, k > 0),
                    *(ahead, GROUP * TWELVE, None),
                )
            elif number == 0:
                multiply_tile(
                    *(following - row, 1, x, at, size, weights, start, 0, depth, out, there, columns, k > 0),
                    *(ahead, GROUP * TWELVE // passes, room),
                )
            else:
                multiply_tile(
                    *(following - row, 1, x, at, size, room, 0, 0, depth, out, there, columns, k > 0),
                    *(ahead, 2 * TWELVE // passes, None),
                )


@njit(error_model="numpy")
def add_escapes(x, rows, size, half, escapes, first, end, out, columns):
    """What the weights ``first .. end`` of those beside a matrix add, one after the other. ``x``: the address of rows
    of ``size`` numbers, in bfloat16 if ``half``."""
    whole, halves = array_at(x, rows * size, np.float32), array_at(x, rows * size, np.uint16)
    for row in range(rows):
        for index in range(first, end):
            escape = escapes[index]
            at, to = row * size + escape.input, row * columns + escape.output
            number = np.uint32(np.uint32(halves[at]) << 16).view(np.float32) if half else whole[at]
            out[to] += number * escape.weight
