"""Weights in small groups as the integer products read them: the same bits, with the rows of a panel side by side.

See :class:`actors.engines.decoder.cpu.forms.Form`. Kinds without a form of their own take the form that holds
their numbers exactly in more bits; those that none holds are computed from bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.cpus import on_all_cpus
from actors.engines.decoder.cpu.forms import FORMS, GROUP, PANEL
from actors.engines.weights.blocks import Bytes, Codes, Floats
from actors.engines.weights.gguf import Stored
from actors.engines.weights.huge_pages import Room


def in_float16(exponents: Bytes) -> bool:
    """Whether halves of the powers of two are numbers of float16."""
    return int(exponents.min(initial=128)) >= 104 and int(exponents.max(initial=128)) <= 143


class Grouped(Protocol):
    """A matrix of at least ``PANEL`` rows in small integers."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def form(self) -> int:
        """Form of its codes, see :class:`Codes`."""
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
        return stored.kind.form > 0 and len(stored.shape) == 2 and stored.shape[0] >= PANEL

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def form(self) -> int:
        return self.stored.kind.form

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        return self.stored.kind.codes(self.stored.rows[rows])


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

    @property
    def nbytes(self) -> int:
        """Size of them in their forms."""
        return sum(int(_count(*part) * part[0].shape[1] * FORMS[part[0].form - 1].weight) for part in self.parts)

    @property
    def nbytes_on_gpu(self) -> int:
        """The same as :class:`actors.engines.decoder.gpu.groups.Groups` has them."""
        return sum(_count(*part) * _row_on_gpu(part[0]) for part in self.parts)

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
        each = ((part, np.arange(part.shape[0]) if order is None else order) for part, order in self.parts)
        return np.concatenate([part.codes(rows).values() for part, rows in each])


def _row_on_gpu(part: Grouped) -> int:
    """Bytes of a row in groups of which four stand together."""
    form, groups = FORMS[part.form - 1], -(-part.shape[1] // (4 * GROUP)) * 4
    return groups * (GROUP * form.bits // 8 + (4 if form.minima or form.halves else 2))


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
    most = max(PANEL, (2 << 20) // matrix.shape[1] // PANEL * PANEL)
    first = matrix.codes(places[:most])  # what stands between takes a few times the rows' own bytes
    form, own = FORMS[first.form - 1], first.codes.shape[1] // first.steps.shape[1]
    size = _bytes_of(first) // len(first.codes)
    whole = room(size * len(places))

    def put(begin: int) -> None:
        found = matrix.codes(places[begin : begin + most]) if begin else first
        steps = np.ascontiguousarray(found.steps, np.float16).view(np.uint8).reshape(-1)
        scales = np.empty(0, np.uint8) if found.scales is None else np.ascontiguousarray(found.scales).reshape(-1)
        codes = np.ascontiguousarray(found.codes).view(np.uint32)
        into = whole[size * begin : size * (begin + len(codes))]
        pack_groups(codes, steps, scales, (form.bits, PANEL, GROUP, own), into, into.view(np.uint32))

    for _ in on_all_cpus(put, range(0, len(places), most)):
        pass
    return first.form, whole


def _bytes_of(codes: Codes) -> int:
    """In their form."""
    scales = 0 if codes.scales is None else codes.scales.size
    return 2 * codes.steps.size + scales + codes.codes.size * FORMS[codes.form - 1].bits // 8
