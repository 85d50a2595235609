"""Products of few rows with a matrix, compiled by numba: every output is one sum over the inputs in their order.

So a row's bits do not depend on the rows beside it, without rows that only fill up; and a small matrix costs no calls.
The sums of ``ROWS`` rows by ``PANEL`` outputs stay in registers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from actors.engines.decoder.cpu.atomics import array_at
from actors.engines.decoder.cpu.formats import GROUP, PANEL, ROWS, TABLE, TWELVE
from actors.engines.decoder.cpu.tile import multiply_tile

# Inputs whose weights in a panel stay in the second cache (96 KiB in 16 bits) while rows pass by in eights
DEPTH = 1024
# Bytes between the weights that one pass computes with and those that it asks for: half of the first cache
NEAR = 24 << 10
# Of 12 bits, where several passes read them unpacked from the first cache, of 48 KiB. Sixteen rows of 91M parameters:
# 9.8 ms with 128, 9.6 with 256, 11.1 with 512
UNPACKED_DEPTH = 128
ROOM = UNPACKED_DEPTH * PANEL // 2  # pairs of bfloat16

# A weight that stands beside its matrix: what the code of 12 bits cannot say
ESCAPE = np.dtype([("input", np.int32), ("output", np.int32), ("weight", np.float32)])


@njit(error_model="numpy")
def _ahead(here, at, size, wide, then):
    """What to ask for: input ``at`` of panels whose inputs, of ``wide`` bytes, begin at the address ``here``, and
    behind the last of ``size`` what is read ``then``; 0: what lies behind them."""
    return then + (at - size) * wide if then != 0 and at >= size else here + at * wide


@njit(error_model="numpy")
def _depth(k, size, most, lead, then):
    """How many inputs from ``k`` on are multiplied next: what is asked for meanwhile lies in one place."""
    depth = min(most, size - k)
    return min(depth, size - lead - k) if then != 0 and k < size - lead else depth


@njit(error_model="numpy")
def multiply_panels(x, rows, size, weights, share, panel, count, out, to, columns, then):
    """The outputs of ``count`` panels, which begin at ``out[to]``, for all rows of ``size`` elements each. ``share``:
    inputs in an element of ``weights`` for one of ``x``. ``then``: the address that is read next, or 0: what lies
    behind these panels."""
    passes, wide, step = (rows + ROWS - 1) // ROWS, PANEL * weights.itemsize // share, PANEL * weights.itemsize
    here, lead, k = weights.ctypes.data + panel * size * wide, NEAR // wide, 0
    while k < size:
        depth = _depth(k, size, DEPTH, lead, then)
        for number in range(passes):
            row, following = rows * number // passes, rows * (number + 1) // passes
            # by the end of the last pass all weights that the next passes read have been asked for
            ahead = _ahead(here, k + depth * (passes - 1 + number) // passes + lead, size, wide, then)
            multiply_tile(
                *(following - row, count, x, row * size + k, size, weights, (panel * size + k) * PANEL // share),
                *(size * PANEL // share, depth, out, row * columns + to, columns, k > 0, ahead, step // passes, None),
            )
        k += depth


@njit(error_model="numpy")
def multiply_packed_panels(x, rows, size, share, weights, panel, count, out, to, columns, room, then):
    """The same with weights of 12 bits, which are unpacked once. ``share``: inputs in an element of ``x``; ``room``:
    for ``ROOM`` pairs. ``count``: 1 where there are more than ``ROWS`` rows."""
    passes, wide = (rows + ROWS - 1) // ROWS, share * TWELVE
    most = (DEPTH if passes == 1 else UNPACKED_DEPTH) // share
    here, lead, k = weights.ctypes.data + TABLE + panel * size * wide, NEAR // (GROUP * TWELVE) * GROUP // share, 0
    while k < size:
        depth = _depth(k, size, most, lead, then)
        start = TABLE + (panel * size + k) * wide
        for number in range(passes):
            row, following = rows * number // passes, rows * (number + 1) // passes
            at, there = row * size + k, row * columns + to
            ahead = _ahead(here, k + depth * (passes - 1 + number) // passes + lead, size, wide, then)
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
        k += depth


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
