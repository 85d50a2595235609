"""Weights in small groups as the integer products read them: the same bits, with the rows of a panel side by side.

See :class:`actors.engines.decoder.cpu.block_forms.Form`. Kinds without a form of their own take the form that holds
their numbers exactly in more bits; those that none holds are computed from bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.weights import blocks
from actors.engines.weights.gguf import Stored
from actors.engines.weights.twelve_bits import Room

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
GROUP, PANEL = 32, 16
MXFP4 = 11  # the form


@dataclass(frozen=True, slots=True)
class Codes:
    """Weights ``(rows, inputs)`` as small integers without a sign, and their scales."""

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
    return _whole(10, b, rows, blocks.nibbles(b[:, 2:]))


def _mxfp4(b: Bytes, rows: int) -> Codes:
    steps = np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128).astype(np.float16)
    return Codes(MXFP4, blocks.nibbles(b[:, 1:]).reshape(rows, -1), _rows(steps, rows))


def _iq4_xs(b: Bytes, rows: int) -> Codes:
    codes = blocks.nibbles(b[:, 8:].reshape(-1, 16))
    scales = blocks.iq4_scales(b).astype(np.int8).view(np.uint8).reshape(rows, -1, 1)
    steps = np.ascontiguousarray(b[:, :2]).view("<f2")
    return Codes(9, codes.reshape(rows, -1), _rows(steps, rows), scales)


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
    "MXFP4": _mxfp4,
}
BITS = {1: 4, 2: 4, 3: 5, 4: 5, 5: 8, 6: 4, 7: 5, 8: 6, 9: 4, 10: 4, 11: 4}  # of a form's codes


def in_float16(exponents: Bytes) -> bool:
    """Whether halves of the powers of two are numbers of float16."""
    return int(exponents.min(initial=128)) >= 104 and int(exponents.max(initial=128)) <= 143


class Grouped(Protocol):
    """A matrix of at least ``PANEL`` rows in small integers."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def values(self) -> Floats:
        """Its numbers."""
        ...

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        """Those rows."""
        ...


@dataclass(frozen=True, slots=True)
class FileBlocks:
    """A matrix in the blocks of its file."""

    stored: Stored

    @staticmethod
    def takes(stored: Stored) -> bool:
        """Whether the integer products read it."""
        if stored.kind.name == "MXFP4" and not in_float16(stored.data.reshape(-1, stored.kind.bytes)[:, 0]):
            return False
        return stored.kind.name in CODES and len(stored.shape) == 2 and stored.shape[0] >= PANEL

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def values(self) -> Floats:
        return self.stored.values()

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        bytes_ = np.ascontiguousarray(self.stored.rows[rows]).reshape(-1, self.stored.kind.bytes)
        return CODES[self.stored.kind.name](bytes_, len(rows))


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix rounded to 8 bits, in groups with a scale each, as Q8_0 is."""

    weight: Tensor

    @staticmethod
    def takes(weight: Tensor) -> bool:
        return len(weight) >= PANEL and weight.shape[1] % GROUP == 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    def values(self) -> Floats:
        found = self.codes(np.arange(len(self.weight)))
        signed = found.codes.astype(np.float32).reshape(len(self.weight), -1, GROUP) - 128
        return (signed * found.steps.astype(np.float32)).reshape(self.shape)

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        whole = self.weight[torch.from_numpy(rows)].float().numpy().reshape(len(rows), -1, GROUP)
        steps = (np.abs(whole).max(2, keepdims=True) / 127).astype(np.float16)
        wide = steps.astype(np.float32)
        codes = np.rint(np.divide(whole, wide, out=np.zeros_like(whole), where=wide > 0)).clip(-127, 127)
        return Codes(5, (codes + 128).astype(np.uint8).reshape(len(rows), -1), steps)


@dataclass(slots=True)
class Blocks:
    """A matrix of parts one below the other, each with those of its rows that it has, in their order, or None."""

    parts: list[tuple[Grouped, NDArray[np.int64] | None]]

    @classmethod
    def joined(cls, matrices: list[Blocks]) -> Blocks:
        """One below the other."""
        return cls([part for matrix in matrices for part in matrix.parts])

    @property
    def shape(self) -> tuple[int, int]:
        return sum(_count(*part) for part in self.parts), self.parts[0][0].shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def in_order(self, order: NDArray[np.int64]) -> Blocks:
        """With the rows in that order, in which at least ``PANEL`` of a part stay together."""
        firsts = np.cumsum([0, *(_count(*part) for part in self.parts)])
        owners = np.searchsorted(firsts, order, side="right") - 1
        parts: list[tuple[Grouped, NDArray[np.int64] | None]] = []
        for run in np.split(np.arange(len(order)), np.flatnonzero(np.diff(owners)) + 1):
            part, before = self.parts[owners[run[0]]]
            own = order[run] - firsts[owners[run[0]]]
            parts.append((part, own if before is None else before[own]))
        return Blocks(parts)

    def packed(self, room: Room) -> list[tuple[int, Bytes, int]]:
        """The form, the panels and the outputs of each part."""
        return [(*packed(part, order, room), _count(part, order)) for part, order in self.parts]

    def values(self) -> Floats:
        """Its numbers."""
        parts = [part.values() if order is None else part.values()[order] for part, order in self.parts]
        return np.concatenate(parts)


def _count(part: Grouped, rows: NDArray[np.int64] | None) -> int:
    return part.shape[0] if rows is None else len(rows)


def first_rows(outputs: int) -> list[int]:
    """The first output of each panel; the last panel ends with the last output."""
    return [*range(0, outputs - PANEL, PANEL), outputs - PANEL]


def packed(matrix: Grouped, order: NDArray[np.int64] | None, room: Room) -> tuple[int, Bytes]:
    """The form of a matrix and its panels, flat. ``order``: the rows."""
    from actors.engines.decoder.cpu.packing import pack_groups

    starts = np.array(first_rows(_count(matrix, order)))
    places = (starts[:, None] + np.arange(PANEL)).reshape(-1)
    if order is not None:
        places = order[places]
    form, whole, at = 0, np.empty(0, np.uint8), 0
    most = max(PANEL, (64 << 20) // (32 * matrix.shape[1]) // PANEL * PANEL)
    for begin in range(0, len(places), most):  # what stands between takes a few times the rows' own bytes
        found = matrix.codes(places[begin : begin + most])
        steps = np.ascontiguousarray(found.steps).view(np.uint8).reshape(-1)
        scales = np.empty(0, np.uint8) if found.scales is None else np.ascontiguousarray(found.scales).reshape(-1)
        size = steps.nbytes + scales.nbytes + found.codes.size * BITS[found.form] // 8
        if at == 0:
            whole = room(size // len(found.codes) * len(places))
        form, own = found.form, found.codes.shape[1] // found.steps.shape[1]
        codes = np.ascontiguousarray(found.codes)
        pack_groups(codes, steps, scales, (BITS[form], PANEL, GROUP, own), whole[at : at + size])
        at += size
    return form, whole
