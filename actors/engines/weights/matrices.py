"""Quantised matrices in the forms in which products read them, or as numbers that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.weights.blocks import Blocks
from actors.engines.weights.formats import E2M1, GROUP, NUMBER, PANEL, Codes, Form
from protocols.errors import ModelError

FP4 = torch.tensor(E2M1) / 2
FORM_OF = {(4, 8.0): NUMBER[Form(4, 8)], (8, 128.0): NUMBER[Form(8, 128)]}  # forms by bits and the zero of all groups
WITH_ZEROS = {4: NUMBER[Form(4, minima=True)]}  # forms by bits, where groups have zeros of their own
CLOSE = 1e-3  # relative: float16 has scales to within half of it, unless they are below its normal numbers


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix ``(codes - zeros) * scales`` of codes without a sign; scales and zeros ``(rows, groups)``."""

    shape: tuple[int, int]
    bits: int
    read: Callable[[Tensor], Tensor]  # int64 rows to their codes (rows, inputs)
    scales: Tensor
    zeros: Tensor | float
    groups: Tensor | None = None  # the group of each input; None: they are equal and follow one another

    def values(self) -> Tensor:
        codes = self.read(torch.arange(self.shape[0]))
        groups = torch.arange(self.shape[1]) // self.group if self.groups is None else self.groups
        shifted = codes.float() - (self.zeros[:, groups].float() if isinstance(self.zeros, Tensor) else self.zeros)
        return shifted * self.scales.float()[:, groups]

    @property
    def group(self) -> int:
        """Inputs of a group."""
        return -(-self.shape[1] // self.scales.shape[1])

    @property
    def form(self) -> int:
        """See :class:`Codes`; 0: there is none."""
        own = isinstance(self.zeros, Tensor)
        return WITH_ZEROS.get(self.bits, 0) if own else FORM_OF.get((self.bits, float(self.zeros)), 0)

    def blocks(self) -> list[Blocks] | None:
        rows, inputs = self.shape
        if not self.form or rows < PANEL or inputs % GROUP or self.groups is not None or self.group % GROUP:
            return None
        scales = self.scales.float()
        return [Blocks([(self, None)])] if torch.allclose(scales.half().float(), scales, rtol=CLOSE, atol=0) else None

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        """For the products. Scales, and what zeros take away, are rounded to float16."""
        chosen = torch.from_numpy(rows)
        scales = self.scales[chosen].float()
        steps = [scales.half()]
        if isinstance(self.zeros, Tensor):
            steps.append((-self.zeros[chosen] * scales).half())
        each = torch.stack(steps, 2).repeat_interleave(self.group // GROUP, 1)[:, : self.shape[1] // GROUP]
        return Codes(self.form, self.read(chosen).to(torch.uint8).numpy(), each.numpy())


@dataclass(frozen=True, slots=True)
class Dequantised:
    """A matrix that is computed when it is asked for: those of all layers at once take several times their files."""

    shape: tuple[int, ...]
    make: Callable[[], Tensor]  # makes the matrix in float32
    form: int = 0  # number of the products that read its codes, see :class:`Codes`; 0: none do
    read: Callable[[Tensor], Codes] | None = None  # codes of int64 rows

    def values(self) -> Tensor:
        return self.make()

    def blocks(self) -> list[Blocks] | None:
        if not self.form or self.shape[0] < PANEL or self.shape[1] % GROUP:
            return None
        return [Blocks([(self, None)])]

    def codes(self, rows: NDArray[np.int64]) -> Codes:
        assert self.read is not None
        return self.read(torch.from_numpy(rows))


@dataclass(frozen=True, slots=True)
class Apart:
    """Matrices of experts: for each expert, the matrices that are stacked."""

    each: list[list[Integers | Dequantised]]
    transposed: bool = False  # transformers has outputs last
    woven: bool = False  # rows of gate and up alternate

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.each[0]
        sizes = sum(matrix.shape[0] for matrix in first), first[0].shape[1]
        return len(self.each), *(sizes[::-1] if self.transposed else sizes)

    def values(self) -> Tensor:
        whole = torch.empty(0)
        for expert, matrices in enumerate(self.each):  # one after the other: together they would be there twice
            made = torch.cat([matrix.values() for matrix in matrices])
            whole = whole if expert else made.new_empty(len(self.each), *made.shape)
            whole[expert] = made
        return whole.transpose(1, 2) if self.transposed else whole

    def blocks(self) -> list[Blocks] | None:
        found = [[matrix.blocks() for matrix in matrices] for matrices in self.each]
        if any(blocks is None for matrices in found for blocks in matrices):
            return None
        experts = [Blocks.joined([part for blocks in matrices for part in blocks or []]) for matrices in found]
        order = np.arange(len(experts[0])).reshape(-1, 2).T.reshape(-1) if self.woven else None
        return experts if order is None else [expert.in_order(order) for expert in experts]


OF_MIXTRAL = ((".block_sparse_moe.", ".mlp."), (".w1.", ".gate_proj."), (".w3.", ".up_proj."), (".w2.", ".down_proj."))


def put_together(weights: dict[str, Any], up: str, down: str, count: int, gated: bool) -> None:
    """Make one weight of the matrices of experts that are stored apart, as transformers does. Those of Mixtral and
    MiniMax M2 are found by each tool's names. Raises ModelError for an expert that is in no file, or of another shape
    than the rest."""
    before = up.rpartition(".experts.")[0] + "."
    older = before.replace(".mlp.", ".block_sparse_moe.")
    keys = [key for key in weights if key.startswith(older) and older != before]
    renamed = [pair for pair in OF_MIXTRAL if any(pair[0] in key for key in keys)]
    for key in keys:
        new = key
        for one, other in OF_MIXTRAL:
            new = new.replace(one, other)
        weights[new] = weights.pop(key)
    for name, parts in ((up, ("gate_proj", "up_proj") if gated else ("up_proj",)), (down, ("down_proj",))):
        place = name.rpartition(".")[0]
        names = [[f"{place}.{expert}.{part}.weight" for part in parts] for expert in range(count)]
        lacking = [key for key in chain(*names) if key not in weights]
        if len(lacking) == count * len(parts):
            continue
        if lacking:
            layer = lacking[0].removesuffix(".weight")
            for one, other in renamed:
                layer = layer.replace(other[:-1], one[:-1])
            raise ModelError(f"{layer} is in no file, besides the model's other experts; download it again")
        _check_alike(weights, [*chain(*names)])
        found = [[weights.pop(key) for key in each] for each in names]
        if all(isinstance(one, Integers | Dequantised) for one in chain(*found)):
            weights[name] = Apart(found)
        else:
            weights[name] = torch.stack([torch.cat([numbers_of(one) for one in each]) for each in found])


def _check_alike(weights: dict[str, Any], names: list[str]) -> None:
    """Raise ModelError unless the matrices of all experts have one shape: a row alone would fill a whole matrix, and
    rows that a gate lacks would be the up's."""
    shapes = [tuple(weights[name].shape) for name in names]
    usual = max(shapes, key=shapes.count)
    for name, shape in zip(names, shapes, strict=True):
        if shape != usual:
            own, others = (" x ".join(map(str, one)) for one in (shape, usual))
            raise ModelError(f"{name} is {own}, and others of its layer's experts are {others}; download it again")


def numbers_of(weight: Any) -> Tensor:
    """A weight in numbers."""
    return weight if isinstance(weight, Tensor) else weight.values()
