"""GGUF's blocks as the integer products read them: the same bits, with the rows of a panel side by side.

See :class:`actors.engines.decoder.cpu.block_forms.Form`. Kinds without a form of their own take the form that holds
their numbers exactly in more bits; those that none holds are computed from bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.engines.weights import blocks
from actors.engines.weights.gguf import Stored

Bytes = NDArray[np.uint8]
GROUP, PANEL, SUPER = 32, 16, 8


@dataclass(frozen=True, slots=True)
class Codes:
    """Weights ``(rows, inputs)`` as small integers without a sign, and what they are multiplied by."""

    form: int  # of :data:`actors.engines.decoder.cpu.block_forms.FORMS`, counted from 1
    codes: Bytes
    steps: NDArray[Any]  # float16 (rows, groups of 256 or 32, 1 or 2): scales, and minima
    scales: Bytes | None = None  # 8 bits (rows, groups of 32, 1 or 2): scales, and minima or those of second halves


def _rows(part: NDArray[Any], rows: int) -> NDArray[Any]:
    return part.reshape(rows, -1, *part.shape[1:])


def _whole(form: int, blocks_: Bytes, rows: int, codes: NDArray[Any], minima: bool = False) -> Codes:
    steps = np.ascontiguousarray(blocks_[:, : 4 if minima else 2]).view("<f2")
    return Codes(form, codes.astype(np.uint8).reshape(rows, -1), _rows(steps, rows))


def _q4_0(b: Bytes, rows: int) -> Codes:
    return _whole(1, b, rows, blocks.nibbles(b[:, 2:]))


def _q4_1(b: Bytes, rows: int) -> Codes:
    return _whole(2, b, rows, blocks.nibbles(b[:, 4:]), True)


def _q5_0(b: Bytes, rows: int) -> Codes:
    return _whole(3, b, rows, blocks.nibbles(b[:, 6:]) | blocks.fifth_bits(b[:, 2:6]))


def _q5_1(b: Bytes, rows: int) -> Codes:
    return _whole(4, b, rows, blocks.nibbles(b[:, 8:]) | blocks.fifth_bits(b[:, 4:8]), True)


def _q8_0(b: Bytes, rows: int) -> Codes:
    return _whole(5, b, rows, b[:, 2:] ^ 128)


def _k(form: int, b: Bytes, rows: int, codes: NDArray[Any]) -> Codes:
    scales, minima = blocks.k_scales(b[:, 4:16])
    steps = np.ascontiguousarray(b[:, :4]).view("<f2").copy()
    steps[:, 1] *= -1  # minima are taken away
    both = np.stack([scales, minima], 2).reshape(rows, -1, 2)
    return Codes(form, codes.astype(np.uint8).reshape(rows, -1), _rows(steps, rows), both)


def _q4_k(b: Bytes, rows: int) -> Codes:
    return _k(6, b, rows, blocks.pairs(b[:, 16:]))


def _q5_k(b: Bytes, rows: int) -> Codes:
    return _k(7, b, rows, blocks.q5_codes(b))


def _q6_k(b: Bytes, rows: int) -> Codes:
    steps = np.ascontiguousarray(b[:, 208:]).view("<f2")
    codes = blocks.q6_codes(b).astype(np.uint8).reshape(rows, -1)
    return Codes(8, codes, _rows(steps, rows), b[:, 192:208].reshape(rows, -1, 2))


def _q3_k(b: Bytes, rows: int) -> Codes:
    codes, scales = blocks.q3_codes(b)
    steps = np.ascontiguousarray(b[:, 108:110]).view("<f2")
    whole = (codes + 32).astype(np.uint8).reshape(rows, -1)
    return Codes(8, whole, _rows(steps, rows), scales.astype(np.int8).view(np.uint8).reshape(rows, -1, 2))


def _iq4_nl(b: Bytes, rows: int) -> Codes:
    return _whole(5, b, rows, blocks.IQ4_VALUES.astype(np.int16)[blocks.nibbles(b[:, 2:])] + 128)


def _iq4_xs(b: Bytes, rows: int) -> Codes:
    codes = blocks.IQ4_VALUES.astype(np.int16)[blocks.nibbles(b[:, 8:].reshape(-1, 16))] + 128
    scales = blocks.iq4_scales(b).astype(np.int8).view(np.uint8).reshape(rows, -1, 1)
    steps = np.ascontiguousarray(b[:, :2]).view("<f2")
    return Codes(9, codes.astype(np.uint8).reshape(rows, -1), _rows(steps, rows), scales)


CODES: dict[str, Callable[[Bytes, int], Codes]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
BITS = {1: 4, 2: 4, 3: 5, 4: 5, 5: 8, 6: 4, 7: 5, 8: 6, 9: 8}  # of a form's codes


def has_form(stored: Stored) -> bool:
    """Whether the integer products read that matrix."""
    return stored.kind.name in CODES and len(stored.shape) == 2 and stored.shape[0] >= PANEL


@dataclass(slots=True)
class Blocks:
    """A matrix as its file stores it: parts one below the other, each with an order of its rows or None."""

    parts: list[tuple[Stored, NDArray[np.int64] | None]]

    @classmethod
    def joined(cls, matrices: list[Blocks]) -> Blocks:
        """One below the other."""
        return cls([part for matrix in matrices for part in matrix.parts])

    @property
    def shape(self) -> tuple[int, int]:
        return sum(stored.shape[0] for stored, _ in self.parts), self.parts[0][0].shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def in_order(self, order: NDArray[np.int64]) -> Blocks:
        """With the rows in that order, in which every part's stay together."""
        parts: list[tuple[Stored, NDArray[np.int64] | None]] = []
        first = 0
        for stored, before in self.parts:
            own = order[first : first + stored.shape[0]] - first
            parts.append((stored, own if before is None else before[own]))
            first += stored.shape[0]
        return Blocks(parts)

    def packed(self) -> list[tuple[int, Bytes, int]]:
        """The form, the panels and the outputs of each part."""
        return [(*packed(stored, order), stored.shape[0]) for stored, order in self.parts]

    def values(self) -> NDArray[np.float32]:
        """Its numbers."""
        parts = [stored.values() if order is None else stored.values()[order] for stored, order in self.parts]
        return np.concatenate(parts)


def first_rows(outputs: int) -> list[int]:
    """The first output of each panel; the last panel ends with the last output."""
    return [*range(0, outputs - PANEL, PANEL), outputs - PANEL]


def packed(stored: Stored, order: NDArray[np.int64] | None = None) -> tuple[int, Bytes]:
    """The form of a matrix of at least ``PANEL`` rows and its panels, flat. ``order``: of its rows."""
    rows = stored.rows
    starts = np.array(first_rows(len(rows)))
    places = (starts[:, None] + np.arange(PANEL)).reshape(-1)
    if order is not None:
        places = order[places]
    form, parts, most = 0, [], max(PANEL, (64 << 20) // (32 * stored.shape[-1]) // PANEL * PANEL)
    for begin in range(0, len(places), most):  # what stands between takes a few times the rows' own bytes
        form, part = _panels(stored, rows[places[begin : begin + most]])
        parts.append(part)
    return form, np.concatenate(parts)


def _panels(stored: Stored, rows: Bytes) -> tuple[int, Bytes]:
    found = CODES[stored.kind.name](np.ascontiguousarray(rows).reshape(-1, stored.kind.bytes), len(rows))
    panels, groups = len(rows) // PANEL, found.codes.shape[1] // GROUP
    quads = found.codes.reshape(panels, PANEL, groups, GROUP // 4, 4).transpose(0, 2, 3, 1, 4)
    words = np.ascontiguousarray(_words(quads, BITS[found.form])).reshape(panels, groups, -1)
    steps = _side_by_side(found.steps, panels).view(np.uint8)
    if found.scales is None:
        whole = np.concatenate([steps.reshape(panels, groups, -1), words], 2)
        return found.form, whole.reshape(-1)
    whole = np.concatenate([_side_by_side(found.scales, panels).reshape(panels, groups, -1), words], 2)
    whole = whole.reshape(panels, groups // SUPER, -1)
    return found.form, np.concatenate([steps.reshape(panels, groups // SUPER, -1), whole], 2).reshape(-1)


def _side_by_side(numbers: NDArray[Any], panels: int) -> NDArray[Any]:
    """``(panels, groups, kinds, PANEL)``."""
    split = numbers.reshape(panels, PANEL, *numbers.shape[1:])
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1))


def _words(quads: Bytes, bits: int) -> Bytes:
    """The codes ``(panels, groups, quads, PANEL, 4)`` of each group as words."""
    if bits == 8:
        return quads
    low = quads & 15
    parts = [low[:, :, :4] | low[:, :, 4:] << 4]
    if bits == 5:
        shifts = np.arange(8, dtype=np.uint8)[:, None, None]
        parts.append(np.bitwise_or.reduce((quads >> 4) << shifts, axis=2, keepdims=True))
    if bits == 6:
        high = (quads >> 4).reshape(*quads.shape[:2], 2, 4, *quads.shape[3:])
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None, None]
        parts.append(np.bitwise_or.reduce(high << shifts, axis=3))
    return np.concatenate(parts, 2)
