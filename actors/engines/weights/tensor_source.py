"""A checkpoint's tensors for a decoder. Integers stay as they were published, in the compiled products' own forms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.weights.blocks import MXFP4, Codes, half_powers
from actors.engines.weights.grouped import GROUP, PANEL, Blocks, in_float16
from actors.engines.weights.quantised import Integers, Microscaled, Weight
from actors.engines.weights.source import WeightSource, own_name

CPU = torch.device("cpu")
FORMS = {(4, 8.0): 1, (8, 128.0): 5}  # by bits and the zero of all groups
WITH_ZEROS = {4: 2}  # by bits, where groups have zeros of their own
CLOSE = 1e-3  # relative: float16 has scales to within half of it, unless they are below its normal numbers


@dataclass(frozen=True, slots=True)
class Published:
    """Integers for the products. Scales, and what zeros take away, are rounded to float16."""

    integers: Integers

    @staticmethod
    def takes(integers: Integers) -> bool:
        """Whether the integer products read that matrix."""
        rows, inputs = integers.shape
        if rows < PANEL or inputs % GROUP or integers.groups is not None or integers.group % GROUP:
            return False
        scales = integers.scales.float()
        if not torch.allclose(scales.half().float(), scales, rtol=CLOSE, atol=0):
            return False
        return _form(integers) > 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.integers.shape

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        whole, chosen = self.integers, torch.from_numpy(rows)
        scales = whole.scales[chosen].float().half()
        steps = [scales]
        if _form(whole) in WITH_ZEROS.values():
            assert isinstance(whole.zeros, Tensor)
            steps.append((-whole.zeros[chosen] * whole.scales[chosen].float()).half())
        each = torch.stack(steps, 2).repeat_interleave(whole.group // GROUP, 1)[:, : whole.shape[1] // GROUP]
        return Codes(_form(whole), whole.read(chosen).to(torch.uint8).numpy(), each.numpy())


def _form(integers: Integers) -> int:
    """0: there is none."""
    if isinstance(integers.zeros, Tensor):
        return WITH_ZEROS.get(integers.bits, 0)
    return FORMS.get((integers.bits, float(integers.zeros)), 0)


@dataclass(frozen=True, slots=True)
class OfExpert:
    """The matrix of one expert in MXFP4."""

    whole: Microscaled
    expert: int

    @property
    def shape(self) -> tuple[int, ...]:
        _, inputs, outputs = self.whole.shape
        return outputs, inputs

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        chosen = torch.from_numpy(rows)
        steps = half_powers(self.whole.scales[self.expert][chosen].numpy())
        return Codes(MXFP4, self.whole.codes(self.expert, chosen).numpy(), steps[:, :, None])


class TensorSource(WeightSource):
    """Of a checkpoint's tensors. On a CPU what was published as integers stays so."""

    def __init__(self, weights: Mapping[str, Weight], dtype: torch.dtype, device: torch.device = CPU) -> None:
        """``dtype``: of weights that are not read as integers."""
        self.device, self.dtype, self._weights = device, dtype, weights

    def __contains__(self, name: str) -> bool:
        return own_name(name, self._weights) in self._weights

    def take(self, name: str) -> Tensor:
        found = self._weights[own_name(name, self._weights)]
        return (found if isinstance(found, Tensor) else found.values()).to(self.device, self.dtype)

    def blocks(self, name: str) -> Blocks | None:
        found = self._weights.get(own_name(name, self._weights))
        if not isinstance(found, Integers) or not Published.takes(found):
            return None
        return Blocks([(Published(found), None)])

    def expert_blocks(self, name: str) -> list[Blocks] | None:
        found = self._weights.get(own_name(name, self._weights))
        if not isinstance(found, Microscaled) or not in_float16(found.scales.numpy()):
            return None
        experts, _, outputs = found.shape
        order = None  # a gate's row lies beside its row of up
        if name.endswith("gate_up_proj"):
            order = np.concatenate([np.arange(0, outputs, 2), np.arange(1, outputs, 2)])
        return [Blocks([(OfExpert(found, expert), order)]) for expert in range(experts)]

    @property
    def size(self) -> int:
        """Weights in all."""
        return sum(math.prod(weight.shape) for weight in self._weights.values())
