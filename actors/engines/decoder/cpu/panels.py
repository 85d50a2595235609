"""Weights as the compiled products read them: in panels, and in 16 bits where that loses nothing.

Or in 8 bits, for drafts: a step of few rows takes as long as it takes to read the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.cpus import on_all_cpus
from actors.engines.weights.blocks import Blocks, Grouped
from actors.engines.weights.formats import FORMS, GROUP, NUMBER, PANEL, Bytes, Codes, Form
from actors.engines.weights.huge_pages import HugePages, Room
from actors.engines.weights.matrix import Matrix

Array = NDArray[np.float32]


def _bytes(size: int) -> NDArray[np.uint8]:
    return np.empty(size, np.uint8)


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix rounded to 8 bits, in groups with a scale each, as Q8_0 is."""

    weight: Tensor
    form: int = NUMBER[Form(8, 128)]

    @staticmethod
    def takes(weight: Tensor) -> bool:
        return len(weight) >= PANEL and weight.shape[1] % GROUP == 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        whole = self.weight[torch.from_numpy(rows)].float().numpy().reshape(len(rows), -1, GROUP)
        steps = (np.abs(whole).max(2, keepdims=True) / 127).astype(np.float16)
        wide = steps.astype(np.float32)
        codes = np.rint(np.divide(whole, wide, out=np.zeros_like(whole), where=wide > 0)).clip(-127, 127)
        return Codes(self.form, (codes + 128).astype(np.uint8).reshape(len(rows), -1), steps)


class Panels:
    """A matrix as a job of the products; every row's bits are its own."""

    __slots__ = ("_kept", "_outputs", "_team", "job", "size")

    def __init__(self, matrix: Matrix, team: Any, int8: bool = False, pages: HugePages | None = None) -> None:
        """``team``: the :class:`actors.engines.decoder.cpu.team.Team` that multiplies. ``int8``: weights are rounded
        to 8 bits, see :class:`Rounded`. ``pages``: where the weights are kept."""
        from actors.engines.decoder.cpu.team import block_product, product  # numba, which may not be here

        self._team, self._outputs = team, len(matrix.weight)
        room = pages.room if pages else _bytes
        bias = None if matrix.bias is None else matrix.bias.float().numpy()
        self._kept: list[Any] = [bias]  # what stands in the job by address
        blocks = matrix.blocks
        if blocks is None and int8 and Rounded.takes(matrix.weight):
            blocks = Blocks([(Rounded(matrix.weight), None)])
        self.job: NDArray[Any]
        if blocks is not None:
            parts = [_packed(*part, room) for part in blocks.parts]
            self._kept += parts
            self.size = sum(weights.nbytes for _, weights, _ in parts)  # bytes
            self.job = block_product(parts, blocks.shape[1])
        else:
            weights, count = _in_panels(matrix.weight, room)
            half = matrix.weight.dtype == torch.bfloat16 and weights.dtype == np.uint32
            self.job = product(weights, count, matrix.weight.shape[1], self._outputs, half)
            self._kept.append(weights)
            self.size = weights.nbytes
        self.job["bias"][0] = 0 if bias is None else bias.ctypes.data

    def multiply(self, x: Array) -> Array:
        """``x W^T + b`` for float32 x ``(rows, in)``. Raises ValueError for rows of another length."""
        if x.shape[1] != (columns := int(self.job["columns"][0])):  # compiled code reads by the one and by the other
            raise ValueError(f"rows of {x.shape[1]} numbers for a matrix of {columns} inputs")
        out: Array = np.empty((len(x), self.job["apart"][0]), dtype=np.float32)
        self._team.make_room(x.size)
        self._team.run(self.job, x, out)
        return out[:, : self._outputs]


def _in_panels(weight: Tensor, room: Room) -> tuple[NDArray[Any], int]:
    """Panels, and their number. In float32 where fewer bits would lose something."""
    from actors.engines.decoder.cpu.packing import pack_halves
    from actors.engines.decoder.cpu.tile import WIDE_PANEL

    narrow, panel = _narrowed(weight), WIDE_PANEL
    starts = np.array(_firsts(len(weight), panel))
    packed = room(len(starts) * panel * weight.shape[1] * narrow.itemsize)
    if narrow.dtype == torch.float32:
        into = torch.from_numpy(packed).view(torch.float32).view(len(starts), -1, panel)
        for start, place in zip(starts.tolist(), into, strict=True):
            rows = narrow[start : start + panel].t()
            place[:, : rows.shape[1]] = rows
            place[:, rows.shape[1] :] = 0
        return into.numpy(), len(starts)
    share = 2 if narrow.dtype == torch.bfloat16 else 1  # inputs with numbers side by side
    bits = narrow.contiguous().view(torch.int16).numpy().view(np.uint16)
    pack_halves(bits, starts, panel, share, packed.view(np.uint16))
    return packed.view(np.uint16 if share == 1 else np.uint32), len(starts)


def _firsts(outputs: int, panel: int) -> list[int]:
    """The first output of each panel; the last panel ends with the last output."""
    return [*range(0, outputs - panel, panel), max(0, outputs - panel)]


def _packed(matrix: Grouped, order: NDArray[np.int64] | None, room: Room) -> tuple[int, Bytes, int]:
    """The form of a matrix, its panels, flat, and its outputs. ``order``: its rows; None: all."""
    from actors.engines.decoder.cpu.packing import pack_groups

    outputs = matrix.shape[0] if order is None else len(order)
    places = (np.array(_firsts(outputs, PANEL))[:, None] + np.arange(PANEL)).reshape(-1)
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
    return first.form, whole, outputs


def _bytes_of(codes: Codes) -> int:
    """In their form."""
    scales = 0 if codes.scales is None else codes.scales.size
    return 2 * codes.steps.size + scales + codes.codes.size * FORMS[codes.form - 1].bits // 8


def _narrowed(weight: Tensor) -> Tensor:
    """In 16 bits if one of the two types holds all weights."""
    for kind in (torch.bfloat16, torch.float16) if weight.shape[1] % 2 == 0 else (torch.float16,):
        narrow = weight.to(kind)
        if torch.equal(narrow.to(weight.dtype), weight):
            return narrow
    return weight.float()
