"""Weights as the compiled products read them: in panels, and in 12 or 16 bits where that loses nothing.

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
from actors.engines.weights.grouped import Blocks
from actors.engines.weights.half import exponent, is_half
from actors.engines.weights.huge_pages import HugePages
from actors.engines.weights.layers import Matrix
from actors.engines.weights.packed import make_linear
from actors.engines.weights.twelve_bits import Escapes, split

Array = NDArray[np.float32]


class Panels:
    """``multiply(x) * scale == x W^T + b`` for float32 x ``(rows, in)``; every row's bits are its own."""

    __slots__ = ("_bias", "_escapes", "_outputs", "_parts", "_steps", "_team", "_weights", "job", "scale")

    def __init__(
        self,
        matrix: Matrix,
        kernels: ModuleType,
        team: Any,
        behind: bool,
        int8: bool = False,
        pages: HugePages | None = None,
        twelve: bool = False,
    ) -> None:
        """``team``: the :class:`actors.engines.decoder.cpu.team.Team` that multiplies. ``behind``: see
        :func:`actors.engines.weights.layers.fast`. ``int8``: each output's weights are rounded to 1/127 of the
        largest of them. ``pages``: where the weights are kept. ``twelve``: in 12 bits, where the processor unpacks
        them and that loses nothing."""
        self._team, self._outputs, bias = team, len(matrix.weight), matrix.bias
        if matrix.blocks is not None:
            self._take_blocks(matrix.blocks, bias, kernels, pages)
            return
        stored = _in_8_bits(matrix.weight, kernels) if int8 else _in_16_bits_or_less(matrix.weight, kernels, twelve)
        self._weights = stored.weights if pages is None else pages.hold(stored.weights)
        self._steps, self._escapes = stored.steps, stored.escapes
        self._bias: Array | None = None if bias is None else (bias * stored.power if behind else bias).float().numpy()
        half = not int8 and matrix.weight.dtype == torch.bfloat16
        self.job: NDArray[Any] = kernels.product(
            self._weights, stored.panels, matrix.weight.shape[1], self._outputs, half
        )
        starts, escapes = stored.escapes or (None, None)
        kept = {"steps": self._steps, "bias": self._bias, "starts": starts, "escapes": escapes}
        for name, array in kept.items():
            self.job[name] = 0 if array is None else array.ctypes.data
        self.scale = 1.0 / stored.power

    def _take_blocks(self, blocks: Blocks, bias: Tensor | None, kernels: ModuleType, pages: HugePages | None) -> None:
        hold = pages.hold if pages else np.asarray
        parts = [(form, hold(panels), rows) for form, panels, rows in blocks.packed()]
        self._parts, self.scale = parts, 1.0
        self._bias = None if bias is None else bias.float().numpy()
        self.job = kernels.block_product(parts, blocks.shape[1])
        self.job["bias"][0] = 0 if self._bias is None else self._bias.ctypes.data

    def multiply(self, x: Array) -> Array:
        out: Array = np.empty((len(x), self.job["apart"][0]), dtype=np.float32)
        self._team.run(self.job, x, out)
        if self._outputs < out.shape[1]:
            out = np.ascontiguousarray(out[:, : self._outputs])
        return out


@dataclass(slots=True)
class _Stored:
    """A matrix as the products read it."""

    weights: NDArray[Any]
    panels: int
    power: float = 1.0  # by which all weights were multiplied
    steps: Array | None = None  # by which each output is to be multiplied
    escapes: Escapes | None = None


def _in_8_bits(weight: Tensor, kernels: ModuleType) -> _Stored:
    most = (weight.abs().amax(1).float() / 127).clamp_min(torch.finfo(torch.float32).tiny)
    # panel by panel: in float32 the output layer of a large vocabulary takes gigabytes
    starts = _starts(len(weight), kernels.PANEL)
    panels = [
        _cut((weight[start:][: kernels.PANEL] / most[start:][: kernels.PANEL, None]).round().char(), kernels.PANEL)
        for start in starts
    ]
    whole = torch.cat(panels)
    return _Stored(_quads(whole) if kernels.HAS_QUADS else whole.numpy(), len(whole), steps=most.numpy())


def _quads(panels: Tensor) -> NDArray[np.int32]:
    """Of four inputs each, without a sign: see :mod:`actors.engines.decoder.cpu.quads`."""
    bytes_ = panels.view(torch.uint8).bitwise_xor(128)  # a byte and 128 more, modulo 256
    quads = bytes_.view(len(panels), -1, 4, panels.shape[2]).transpose(2, 3).contiguous()
    return quads.view(torch.int32).numpy()


def _in_16_bits_or_less(weight: Tensor, kernels: ModuleType, twelve: bool) -> _Stored:
    """Or in float32 where that would lose something. Both of 12 and 16 bits add up the same in the same order, so that
    a text does not depend on which a machine has."""
    parts = split(weight) if weight.shape[1] % kernels.GROUP == 0 else None
    if parts is not None:
        weight = torch.from_numpy(parts.whole.view(np.int16)).view(torch.bfloat16).to(weight.dtype)
        if twelve and kernels.HAS_TWELVE:
            bits = _cut(weight.bfloat16(), kernels.PANEL).view(torch.int16).numpy().view(np.uint16)
            escapes = parts.escapes(kernels.PANEL, kernels.ESCAPE)
            return _Stored(parts.pack(bits, kernels.GROUP), len(bits), escapes=escapes)
    power = 1.0
    if weight.dtype == torch.float32 and is_half(weight):
        power = 2.0 ** exponent(weight)
        weight = (weight * power).half()
    panels = _cut(weight, kernels.PANEL)
    stored = _Stored(panels.numpy() if panels.dtype == torch.float32 else _bits(panels), len(panels), power)
    if parts is not None:
        stored.escapes = parts.escapes(kernels.PANEL, kernels.ESCAPE, power)
    return stored


def _cut(weight: Tensor, panel: int) -> Tensor:
    """Panels ``(number, inputs, panel)``; the last one ends with the last output."""
    padded = torch.cat([weight, weight.new_zeros(max(0, panel - len(weight)), weight.shape[1])])
    return torch.stack([padded[start : start + panel].t() for start in _starts(len(padded), panel)])


def _starts(outputs: int, panel: int) -> list[int]:
    """The first output of each panel."""
    return [*range(0, outputs - panel, panel), max(0, outputs - panel)]


def _bits(panels: Tensor) -> NDArray[Any]:
    """Of float16, or of bfloat16 in pairs of two inputs."""
    bits = panels.view(torch.int16)
    if panels.dtype == torch.float16:
        return bits.numpy().view(np.uint16)
    pairs = bits.view(len(panels), -1, 2, panels.shape[2]).transpose(2, 3).contiguous()
    return pairs.view(torch.int32).numpy().view(np.uint32)


class PanelLinear(nn.Module):
    """``y = x W^T + b`` for float32 x ``(..., in)``, in a model of ``transformers``."""

    def __init__(self, panels: Panels) -> None:
        super().__init__()
        self.panels = panels

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous().numpy()
        return torch.from_numpy(self.panels.multiply(rows)).mul_(self.panels.scale).view(*x.shape[:-1], -1)


def quickest_linear(
    weight: Tensor, bias: Tensor | None, int8: bool, pages: HugePages | None = None, twelve: bool = False
) -> nn.Module | None:
    """:func:`make_linear`, or panels for one thread in float32: where they have 16 bits, half the memory is read, and
    in ``twelve`` three eighths."""
    if not int8 and weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.get_num_threads() == 1:
        kernels = compiled_kernels()
        if kernels is not None:
            matrix = Matrix(weight.detach(), None if bias is None else bias.detach())
            return PanelLinear(Panels(matrix, kernels, kernels.Team(0), behind=True, pages=pages, twelve=twelve))
    return make_linear(weight, bias, int8)
