"""Products of few rows with a matrix, compiled by numba: every output is one sum over the inputs in their order.

So a row's bits do not depend on other rows, padding rows are not needed, and a small matrix costs no calls. The sums of
``ROWS`` rows by ``WIDE_PANEL`` outputs stay in registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from actors.engines.decoder.cpu.linking import linked
from actors.engines.decoder.cpu.tile import ROWS, WIDE_PANEL, InputRows, Meanwhile, Sums, TileWeights, multiply_tile

# Inputs with weights of a panel that stay in the second cache (96 KiB in 16 bits) while rows pass by in eights
DEPTH = 1024
# Bytes between the weights of a pass and the prefetched ones: half of the first cache
NEAR = 24 << 10


class PanelRange(NamedTuple):
    """``count`` panels from number ``first`` on. ``share``: weights of one output in an element of ``weights``."""

    weights: Any
    share: Any
    first: Any
    count: Any


@linked
def _part(inputs, sums, number, passes, k):
    """Rows of one of several passes, from input ``k`` on, and their sums."""
    row, following = inputs.count * number // passes, inputs.count * (number + 1) // passes
    rows = InputRows(inputs.x, row * inputs.size + k, inputs.size, following - row)
    return rows, Sums(sums.out, row * sums.columns + sums.to, sums.columns, k > 0)


@linked
def multiply_panels(inputs, panels, sums):
    """Multiply all rows with ``panels``. What follows them in memory is read next."""
    weights, size, share = panels.weights, inputs.size, panels.share
    passes, step = (inputs.count + ROWS - 1) // ROWS, WIDE_PANEL * weights.itemsize
    wide = step // share
    here, lead = weights.ctypes.data + panels.first * size * wide, NEAR // wide
    for k in range(0, size, DEPTH):
        depth = min(DEPTH, size - k)
        tile = TileWeights(
            weights, (panels.first * size + k) * WIDE_PANEL // share, size * WIDE_PANEL // share, panels.count, depth
        )
        for number in range(passes):
            # by the end of the last pass all weights that the next passes read have been asked for
            ahead = here + (k + depth * (passes - 1 + number) // passes + lead) * wide
            rows, into = _part(inputs, sums, number, passes, k)
            multiply_tile(rows, tile, into, Meanwhile(ahead, step // passes))
