"""Weights as the compiled products read them: in panels, and in 16 bits where that loses nothing.

Or in 8 bits, for drafts: a step of few rows takes as long as it takes to read the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.forms import GROUP, PANEL
from actors.engines.weights.blocks import Codes
from actors.engines.weights.grouped import Blocks
from actors.engines.weights.huge_pages import HugePages, Room
from actors.engines.weights.layers import Matrix
from actors.engines.weights.packed import make_linear

Array = NDArray[np.float32]


def _bytes(size: int) -> NDArray[np.uint8]:
    return np.empty(size, np.uint8)


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix rounded to 8 bits, in groups with a scale each, as Q8_0 is."""

    weight: Tensor
    form: int = 5

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
    """``multiply(x) == x W^T + b`` for float32 x ``(rows, in)``; every row's bits are its own."""

    __slots__ = ("_kept", "_outputs", "_team", "job", "size")

    def __init__(
        self,
        matrix: Matrix,
        kernels: ModuleType,
        team: Any,
        int8: bool = False,
        pages: HugePages | None = None,
    ) -> None:
        """``team``: the :class:`actors.engines.decoder.cpu.team.Team` that multiplies. ``int8``: weights are rounded
        to 8 bits, see :class:`Rounded`. ``pages``: where the weights are kept."""
        self._team, self._outputs = team, len(matrix.weight)
        room = pages.room if pages else _bytes
        bias = None if matrix.bias is None else matrix.bias.float().numpy()
        self._kept: list[Any] = [bias]  # what stands in the job by address
        blocks = matrix.blocks
        if blocks is None and int8 and Rounded.takes(matrix.weight):
            blocks = Blocks([(Rounded(matrix.weight), None)])
        self.job: NDArray[Any]
        if blocks is not None:
            parts = blocks.packed(room)
            self._kept += parts
            self.size = sum(weights.nbytes for _, weights, _ in parts)  # bytes
            self.job = kernels.block_product(parts, blocks.shape[1])
        else:
            weights, count = _in_panels(matrix.weight, kernels, room)
            half = matrix.weight.dtype == torch.bfloat16
            self.job = kernels.product(weights, count, matrix.weight.shape[1], self._outputs, half)
            self._kept.append(weights)
            self.size = weights.nbytes
        self.job["bias"][0] = 0 if bias is None else bias.ctypes.data

    def multiply(self, x: Array) -> Array:
        out: Array = np.empty((len(x), self.job["apart"][0]), dtype=np.float32)
        if self.job["form"][0]:  # inputs are rounded
            self._team.make_room(x.size)
        self._team.run(self.job, x, out)
        if self._outputs < out.shape[1]:
            out = np.ascontiguousarray(out[:, : self._outputs])
        return out


def _in_panels(weight: Tensor, kernels: ModuleType, room: Room) -> tuple[NDArray[Any], int]:
    """Panels, and their number. In float32 where fewer bits would lose something."""
    panel, narrow = kernels.PANEL, _narrowed(weight)
    starts = np.array([*range(0, len(weight) - panel, panel), max(0, len(weight) - panel)])
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
    kernels.pack_halves(bits, starts, panel, share, packed.view(np.uint16))
    return packed.view(np.uint16 if share == 1 else np.uint32), len(starts)


def _narrowed(weight: Tensor) -> Tensor:
    """In 16 bits if one of the two types holds all weights."""
    for kind in (torch.bfloat16, torch.float16) if weight.shape[1] % 2 == 0 else (torch.float16,):
        narrow = weight.to(kind)
        if torch.equal(narrow.to(weight.dtype), weight):
            return narrow
    return weight.float()


class PanelLinear(nn.Module):
    """``y = x W^T + b`` for float32 x ``(..., in)``, in a model of ``transformers``."""

    def __init__(self, panels: Panels) -> None:
        super().__init__()
        self.panels = panels

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous().numpy()
        return torch.from_numpy(self.panels.multiply(rows)).view(*x.shape[:-1], -1)


def quickest_linear(
    weight: Tensor, bias: Tensor | None, int8: bool, pages: HugePages | None = None
) -> nn.Module | None:
    """In panels for one thread in float32, of half the memory where 16 bits lose nothing, or of 8 bits; else by
    :func:`make_linear`."""
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.get_num_threads() == 1:
        kernels = compiled_kernels()
        if kernels is not None:
            matrix = Matrix(weight.detach(), None if bias is None else bias.detach())
            return PanelLinear(Panels(matrix, kernels, kernels.Team(0), int8, pages))
    return make_linear(weight, bias)
