"""Matrices of bfloat16 in 12 bits a weight, without loss.

Trained weights of a matrix have some fifteen exponents below the largest. Those have codes of four bits; a weight of
another exponent, one in some thousands, is an escape: 0 in the matrix, and added to the product behind all others.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.weights.huge_pages import Room

CACHE_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
LAST_CACHE = 32 << 20  # bytes, where the kernel does not tell
# Weights in 16 bits over the last cache, from which on 12 bits take less time. The bundled target has 1.03 on the
# machine where that was tried. With inputs in float32 it took 0.88 of the time for a row, but 1.04 for eight rows and
# up to 1.2 for more; with pairs of bfloat16 0.67 / 0.73 / 0.87 / 0.98 / 1.03 for 1 / 4 / 8 / 12 / 16 rows
BEYOND_CACHE, BEYOND_CACHE_IN_PAIRS = 2, 1
CODES = 16  # number of codes; the first is 0's
MOST_ESCAPES = 0.01  # share of a matrix: each costs a row a nanosecond; the bundled target has 0.0002

Escapes = tuple[NDArray[np.int64], NDArray[Any]]  # beginnings of each panel's, and all of them


@functools.cache
def last_cache() -> int:
    """Bytes of this machine's largest cache."""
    with contextlib.suppress(OSError, ValueError):
        return 1024 * int(CACHE_SIZE.read_text().strip().removesuffix("K"))
    return LAST_CACHE


def waits_for_memory(weights: int, pairs: bool) -> bool:
    """Whether forwards of a model with ``weights`` weights are shorter with 12 bits, because memory is what they
    wait for. ``pairs``: inputs are bfloat16, too, and multiplied in pairs."""
    return 2 * weights > (BEYOND_CACHE_IN_PAIRS if pairs else BEYOND_CACHE) * last_cache()


@dataclass(frozen=True, slots=True)
class Split:
    """``whole``, every weight of which has a code, and the escapes, are a matrix ``(outputs, inputs)``."""

    whole: NDArray[np.uint16]  # bits of bfloat16
    largest: int  # exponent, as stored
    outputs: NDArray[np.int64]  # output numbers of the escapes
    inputs: NDArray[np.int64]
    weights: NDArray[np.float32]

    def pack(self, starts: NDArray[np.int64], panel: int, room: Room) -> NDArray[np.uint8]:
        """The table of codes, and panels of ``panel`` outputs each from ``starts`` on, in the layout of
        :class:`actors.engines.decoder.cpu.formats.Twelve`."""
        from actors.engines.decoder.cpu.packing import pack_twelve

        below = self.largest - CODES + 1  # the exponent just below code 1's
        table = np.array([0, *(max(0, below + code) << 7 for code in range(1, CODES))] * 2, np.uint16)
        packed = room(table.nbytes + len(starts) * self.whole.shape[1] * panel * 3 // 2)
        packed[: table.nbytes] = table.view(np.uint8)
        pack_twelve(self.whole, starts, panel, below, packed[table.nbytes :].view(np.uint16))
        return packed

    def escapes(self, panel: int, kind: np.dtype[Any], scale: float = 1.0) -> Escapes | None:
        """Those of each panel of ``panel`` outputs, times ``scale``; what the last panel shares with the one before
        is in both. ``kind``: :data:`actors.engines.decoder.cpu.products.ESCAPE`."""
        if not len(self.weights):
            return None
        last = max(0, len(self.whole) - panel)
        begins = [min(begin, last) for begin in range(0, len(self.whole), panel)]
        members = [np.flatnonzero((self.outputs >= begin) & (self.outputs < begin + panel)) for begin in begins]
        chosen = np.concatenate(members)
        found = np.zeros(len(chosen), kind)
        found["input"], found["output"] = self.inputs[chosen], self.outputs[chosen]
        found["weight"] = self.weights[chosen] * np.float32(scale)
        return np.cumsum([0, *map(len, members)], dtype=np.int64), found


def split(weight: Tensor) -> Split | None:
    """None where bfloat16 does not hold the weights, or too many have no code."""
    rounded = weight.bfloat16()
    if not torch.equal(rounded.to(weight.dtype), weight):
        return None
    from actors.engines.decoder.cpu.packing import count_escapes, find_escapes

    bits = rounded.contiguous().view(torch.int16).numpy().view(np.uint16)
    largest, count = count_escapes(bits, CODES)
    if largest == 0xFF or count > MOST_ESCAPES * bits.size:
        return None
    outputs, inputs = places = np.empty((2, count), np.int64)
    if count:
        find_escapes(bits, largest, CODES, places)
        bits = bits.copy()
    weights = (bits[outputs, inputs].astype(np.uint32) << 16).view(np.float32)
    bits[outputs, inputs] = 0
    return Split(bits, largest, outputs, inputs, weights)
