"""Weights as the compiled products read them: in panels, and in 16 bits where that loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.engines.backends.llama.linear import exponent, is_half
from actors.engines.backends.llama.weights import Matrix

Array = NDArray[np.float32]


MultiplyInto = Callable[[Array, NDArray[Any], Array], None]  # x, panels and where x W^T goes


def can_use_panels() -> bool:
    """Fewer registers than AVX-512 has do not hold their sums."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


class Panels:
    """``multiply(x) * scale == x W^T + b`` for float32 x ``(rows, in)``; every row's bits are its own."""

    __slots__ = ("_bias", "_multiply", "_outputs", "_weights", "scale")

    def __init__(self, matrix: Matrix, multiply: MultiplyInto, panel: int, behind: bool) -> None:
        """``panel``: outputs of one. ``behind``: see :func:`actors.engines.backends.llama.linear.fast`."""
        self._multiply = multiply
        weight, bias = matrix.weight, matrix.bias
        self._outputs, inputs = weight.shape
        half = is_half(weight)
        power = 2.0 ** exponent(weight) if half else 1.0
        rest = -self._outputs % panel
        padded = torch.cat([weight * power, weight.new_zeros(rest, inputs)])
        panels = padded.view(-1, panel, inputs).transpose(1, 2).contiguous()
        self._weights = panels.half().numpy().view(np.uint16) if half else panels.numpy()
        self._bias: Array | None = None if bias is None else (bias * power if behind else bias).numpy()
        self.scale = 1.0 / power

    def multiply(self, x: Array) -> Array:
        out = np.empty((len(x), len(self._weights) * self._weights.shape[2]), dtype=np.float32)
        self._multiply(x, self._weights, out)
        if self._outputs < out.shape[1]:
            out = np.ascontiguousarray(out[:, : self._outputs])
        if self._bias is not None:
            out += self._bias
        return out
