"""The fused decoder for very small draft models: numpy's overhead per operation is a third of torch's.

Bits depend on the shapes here, so it is for draft models only. It shares the pool's memory with torch. numpy brings its
own BLAS, whose threads are limited by OPENBLAS_NUM_THREADS before the process imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.engine import Segment
from actors.engines.fused_weights import Matrix, Weights
from actors.engines.pool import KVPool

Array = NDArray[np.float32]


@dataclass(slots=True)
class Product:
    """``x W^T + b``. ``packed`` is for more than one row, where it is quicker."""

    table: Array  # (in, out)
    bias: Array | None
    packed: Any = None

    def __call__(self, x: Array) -> Array:
        if self.packed is not None and len(x) > 1:
            out: Array = self.packed(torch.from_numpy(x)).numpy()
            return out
        out = x @ self.table
        if self.bias is not None:
            out += self.bias
        return out


@dataclass(slots=True)
class Block:
    qkv: Product
    query_norm: Array | None
    out: Product
    gate_up: Product
    down: Product
