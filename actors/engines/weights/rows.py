"""Products of libraries, kept to the row counts at which rows have the same bits.

Libraries add up in another order for some numbers of rows. Which of them agree was measured on matrices of eight shapes
(docs/exactness.md, "Row counts that agree").
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
