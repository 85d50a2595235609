"""A KV pool whose spans ONNX Runtime reads without a copy: it takes dense arrays only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK = 64

Array = NDArray[np.float32]


class BlockPool:
    """Blocks of ``BLOCK`` slots with all heads: consecutive blocks of a layer are one dense array.

    ``keys`` ``(layers, blocks, kv_heads, head_dim, BLOCK)``, transposed as scores want them; ``values`` ``(layers,
    blocks, kv_heads, BLOCK, head_dim)``. Like :class:`actors.engines.pool.KVPool` to those who own slots.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, slots: int) -> None:
        self.slots = slots
        blocks = -(-slots // BLOCK)
        self.keys: Array = np.zeros((layers, blocks, kv_heads, head_dim, BLOCK), dtype=np.float32)
        self.values: Array = np.zeros((layers, blocks, kv_heads, BLOCK, head_dim), dtype=np.float32)
        self.positions = np.zeros(slots, dtype=np.int64)

    def write(self, slots: Sequence[int] | NDArray[np.int64], keys: Array, values: Array) -> None:
        """``keys`` and ``values``: ``(layers, kv_heads, n, head_dim)``."""
        if len(slots) == 1:
            block, at = divmod(int(slots[0]), BLOCK)
            self.keys[:, block, :, :, at] = keys[:, :, 0]
            self.values[:, block, :, at] = values[:, :, 0]
            return
        blocks, within = np.divmod(np.asarray(slots), BLOCK)
        self.keys[:, blocks, :, :, within] = keys.transpose(2, 0, 1, 3)  # numpy puts the indexed axis first
        self.values[:, blocks, :, within] = values.transpose(2, 0, 1, 3)

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots; right also where the two overlap, since everything is read before anything is written."""
        if not len(source):
            return
        blocks, within = np.divmod(np.asarray(source), BLOCK)
        keys, values = self.keys[:, blocks, :, :, within], self.values[:, blocks, :, within]
        self.write(target, keys.transpose(1, 2, 0, 3), values.transpose(1, 2, 0, 3))
        self.positions[np.asarray(target)] = self.positions[np.asarray(source)]

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes
