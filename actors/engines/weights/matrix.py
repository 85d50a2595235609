"""A matrix of weights, as numbers or in small groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.weights.blocks import Blocks


@dataclass(slots=True)
class Matrix:
    """``y = x W^T + b`` with W ``(out, in)``. With ``blocks`` the weight lies there and is a shape alone here."""

    weight: Tensor
    bias: Tensor | None = None
    blocks: Blocks | None = None

    @classmethod
    def of_blocks(cls, blocks: Blocks, bias: Tensor | None = None) -> Matrix:
        return cls(torch.empty(blocks.shape, device="meta"), bias, blocks)

    @property
    def nbytes(self) -> int:
        """Size of what a product reads."""
        return self.weight.nbytes

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Those of its outputs, as an embedding has them."""
        return functional.embedding(ids, self.weight).to(dtype)

    def inputs(self, x: Tensor) -> Tensor:
        """Rows as the products of a round read them."""
        return x

    def multiply(self, x: Tensor) -> Tensor:
        """By torch, on any device."""
        return functional.linear(x, self.weight, self.bias)
