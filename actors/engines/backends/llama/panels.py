"""Weights as the compiled products read them: in panels, and in 16 bits where that loses nothing.

Or in 8 bits, for drafts: a step of few rows takes as long as it takes to read the weights.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.engines.backends.llama.compiler import compiled_kernels
from actors.engines.backends.llama.huge_pages import HugePages
from actors.engines.backends.llama.linear import exponent, is_half
from actors.engines.backends.llama.weights import Matrix
from actors.engines.packed import make_linear

Array = NDArray[np.float32]


class Panels:
    """``multiply(x) * scale == x W^T + b`` for float32 x ``(rows, in)``; every row's bits are its own."""

    __slots__ = ("_bias", "_outputs", "_steps", "_team", "_weights", "job", "scale")

    def __init__(
        self,
        matrix: Matrix,
        kernels: ModuleType,
        team: Any,
        behind: bool,
        int8: bool = False,
        pages: HugePages | None = None,
    ) -> None:
        """``team``: the :class:`actors.engines.backends.compiled.team.Team` that multiplies. ``behind``: see
        :func:`actors.engines.backends.llama.linear.fast`. ``int8``: each output's weights are rounded to 1/127 of the
        largest of them. ``pages``: where the weights are kept."""
        self._team, bias = team, matrix.bias
        self._outputs, inputs = matrix.weight.shape
        self._weights, power, self._steps = _packed(matrix.weight, kernels.PANEL, int8)
        if pages is not None:
            self._weights = pages.hold(self._weights)
        self._bias: Array | None = None if bias is None else (bias * power if behind else bias).float().numpy()
        self.job: NDArray[Any] = kernels.product(self._weights, inputs, self._outputs)
        for name, array in (("steps", self._steps), ("bias", self._bias)):
            self.job[name] = 0 if array is None else array.ctypes.data
        self.scale = 1.0 / power

    def multiply(self, x: Array) -> Array:
        out: Array = np.empty((len(x), self.job["apart"][0]), dtype=np.float32)
        self._team.run(self.job, x, out)
        if self._outputs < out.shape[1]:
            out = np.ascontiguousarray(out[:, : self._outputs])
        return out


def _packed(weight: Tensor, panel: int, int8: bool) -> tuple[NDArray[Any], float, Array | None]:
    """``weight`` in panels; by what it was multiplied, as a whole; and what each output is to be multiplied by."""
    power, steps = 1.0, None
    if int8:
        most = (weight.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        weight, steps = (weight / most[:, None]).round().to(torch.int8), most.numpy()
    elif weight.dtype == torch.float32 and is_half(weight):
        power = 2.0 ** exponent(weight)
        weight = (weight * power).half()
    padded = torch.cat([weight, weight.new_zeros(max(0, panel - len(weight)), weight.shape[1])])
    starts = [*range(0, len(padded) - panel, panel), len(padded) - panel]  # the last one ends with the last output
    panels = torch.stack([padded[start : start + panel].t() for start in starts])
    if weight.dtype == torch.bfloat16:
        pairs = panels.view(torch.int16).view(len(starts), -1, 2, panel).transpose(2, 3).contiguous()
        return pairs.view(torch.int32).numpy().view(np.uint32), power, steps
    if weight.dtype == torch.float16:
        return panels.view(torch.int16).numpy().view(np.uint16), power, steps
    return panels.numpy(), power, steps


class PanelLinear(nn.Module):
    """``y = x W^T + b`` for float32 x ``(..., in)``, in a model of ``transformers``."""

    def __init__(self, panels: Panels) -> None:
        super().__init__()
        self.panels = panels

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous().numpy()
        return torch.from_numpy(self.panels.multiply(rows)).mul_(self.panels.scale).view(*x.shape[:-1], -1)


def quickest_linear(
    weight: Tensor, bias: Tensor | None, int8: bool, pages: HugePages | None = None
) -> nn.Module | None:
    """:func:`make_linear`, or panels for one thread in float32: where they have 16 bits, half the memory is read."""
    if not int8 and weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.get_num_threads() == 1:
        kernels = compiled_kernels()
        if kernels is not None:
            matrix = Matrix(weight.detach(), None if bias is None else bias.detach())
            return PanelLinear(Panels(matrix, kernels, kernels.Team(0), behind=True, pages=pages))
    return make_linear(weight, bias, int8)
