"""Products of libraries, kept to the row counts at which rows have the same bits.

Libraries add up in another order for some numbers of rows. Which of them agree was measured on matrices of eight shapes
(docs/exactness.md, "Row counts that agree").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

FIXED = 8  # rows of torch's own products: at every place of a group they agree, in every type
FEW = 4  # outputs: with fewer, rows of a group differ, and each is computed alone (a router of two experts)

PerRows = Callable[[Tensor], Tensor]  # (rows, in) -> (rows, out)


def fixed_rows(multiply: PerRows, x: Tensor, outputs: int) -> Tensor:
    """``multiply(x)`` by groups of ``FIXED`` rows; the last one is filled up."""
    rows = len(x)
    group = FIXED if outputs >= FEW else 1
    missing = -rows % group
    if missing:
        x = torch.cat([x, x.new_zeros(missing, x.shape[1])])
    parts = [multiply(part) for part in torch.split(x, group)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:rows]


class FixedRows(TorchFunctionMode):
    """While it is entered, torch's products with a matrix of weights are computed by :func:`fixed_rows`: for model code
    that is not ours, such as a router's and the experts' of a mixture."""

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if func is functional.linear and len(args) > 1 and args[0].ndim > 1:
            x, *rest = args
            out = fixed_rows(lambda part: func(part, *rest, **options), x.reshape(-1, x.shape[-1]), len(args[1]))
            return out.view(*x.shape[:-1], -1)
        if func is torch.addmm and not options:
            bias, x, weight = args
            return fixed_rows(lambda part: func(bias, part, weight), x, weight.shape[1])
        if (
            func in (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm)
            and args[0].ndim > 1
            and args[1].ndim == 2
        ):
            x, weight = args
            out = fixed_rows(lambda part: func(part, weight), x.reshape(-1, x.shape[-1]), weight.shape[1])
            return out.view(*x.shape[:-1], -1)
        return func(*args, **options)
