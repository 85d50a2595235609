"""Weights put in the order in which the products read them, compiled: a start packs all of a model's.

numpy takes a dozen passes over memory for what is one, and holds the interpreter's lock meanwhile.
"""

from __future__ import annotations

import numpy as np
from numba import types

from actors.engines.decoder.cpu.linking import kept

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_HALVES, _PLACES = types.Array(types.uint16, 2, "C", readonly=True), types.Array(types.int64, 1, "C", readonly=True)


@kept(
    types.void(
        types.Array(types.uint32, 2, "C", readonly=True),
        _BYTES,
        _BYTES,
        types.UniTuple(types.int64, 4),
        types.Array(types.uint8, 1, "C"),
        types.Array(types.uint32, 1, "C"),
    ),
    nogil=True,
)
def pack_groups(codes, steps, scales, sizes, into, words):
    """Codes ``(rows, inputs / 4)``, four inputs a word, as panels: of every group of inputs the ``scales``, if there
    are any, and the codes; and before every whole of several groups their ``steps``. Both stand in the order of rows
    and groups, several bytes each. ``sizes``: bits of a code, rows of a panel, inputs of a group and of a whole.
    ``words``: the memory of ``into``."""
    bits, panel, group, whole = sizes
    rows, quads = codes.shape[0], group // 4
    inputs = 4 * codes.shape[1]
    wholes, groups = inputs // whole, inputs // group
    step, scale = len(steps) // (rows * wholes), len(scales) // (rows * groups)
    low, lowest, two = np.uint32(0x0F0F0F0F), np.uint32(0x01010101), np.uint32(0x03030303)
    half, at = quads // 2, 0
    for first in range(0, rows, panel):
        for number in range(groups):
            if number % (whole // group) == 0:
                for kind in range(step // 2):  # runs of two bytes
                    for row in range(panel):
                        place = ((first + row) * wholes + number * group // whole) * step + 2 * kind
                        into[at], into[at + 1] = steps[place], steps[place + 1]
                        at += 2
            for kind in range(scale):
                for row in range(panel):
                    into[at] = scales[((first + row) * groups + number) * scale + kind]
                    at += 1
            for row in range(panel):
                own, to = codes[first + row, number * quads : (number + 1) * quads], at // 4 + row
                if bits == 8:
                    for quad in range(quads):
                        words[to + quad * panel] = own[quad]
                    continue
                for quad in range(half):
                    words[to + quad * panel] = own[quad] & low | (own[quad + half] & low) << np.uint32(4)
                to += half * panel
                if bits == 5:
                    word = np.uint32(0)
                    for quad in range(quads):
                        word |= (own[quad] >> np.uint32(4) & lowest) << np.uint32(quad)
                    words[to] = word
                elif bits == 6:
                    for part in range(2):
                        word = np.uint32(0)
                        for quad in range(4):
                            word |= (own[4 * part + quad] >> np.uint32(4) & two) << np.uint32(2 * quad)
                        words[to + part * panel] = word
            at += 4 * panel * (quads if bits == 8 else quads * bits // 8)


@kept(types.void(_HALVES, _PLACES, types.int64, types.int64, types.Array(types.uint16, 1, "C")), nogil=True)
def pack_halves(bits, starts, panel, share, into):
    """Numbers of 16 bits ``(outputs, inputs)`` as panels: of every ``share`` inputs those of all outputs."""
    outputs, inputs = bits.shape
    base = 0
    for start in starts:
        most = min(panel, outputs - start)
        for output in range(most):
            own = bits[start + output]
            for i in range(inputs):
                into[base + (i // share * panel + output) * share + i % share] = own[i]
        for output in range(most, panel):
            for i in range(inputs):
                into[base + (i // share * panel + output) * share + i % share] = 0
        base += inputs * panel
