"""Products of few rows with a matrix, compiled by numba: every output is one sum over the inputs in their order.

So a row's bits do not depend on the rows beside it, without rows that only fill up; and a small matrix costs no calls.
The sums of ``ROWS`` rows by ``PANEL`` outputs stay in registers.
"""

from __future__ import annotations

from numba import njit

from actors.engines.backends.compiled.tile import PANEL, ROWS, multiply_tile

# Inputs whose weights in a panel stay in the second cache (96 KiB in 16 bits) while rows pass by in eights
DEPTH = 1024
NEAR = 4096  # weights between those that one pass computes with and those that it asks for


@njit(error_model="numpy")
def multiply_panels(x, rows, size, weights, first, end, out, columns):
    """The outputs of panels ``first .. end`` for all rows. The last panel of a matrix ends with its last output, so it
    may have some outputs in common with the one before."""
    last = columns - PANEL
    passes = (rows + ROWS - 1) // ROWS
    for panel in range(first, end):
        to = min(panel * PANEL, last)
        for k in range(0, size, DEPTH):
            depth = min(DEPTH, size - k)
            start = (panel * size + k) * PANEL
            for number in range(passes):
                row, following = rows * number // passes, rows * (number + 1) // passes
                at, there = row * size + k, row * columns + to
                # by the end of the last pass all weights that the next passes read have been asked for
                fetch = start + depth * PANEL * (passes - 1 + number) // passes + NEAR
                multiply_tile(
                    following - row, x, at, size, weights, start, depth, out, there, columns, k > 0, fetch, passes
                )
