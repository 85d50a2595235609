"""The KV pool: a slot holds one token's keys and values. Rolling back is forgetting slots; nothing is ever moved but
accepted tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from protocols.errors import PoolFull


class KVPool:
    """Per layer two tensors ``(kv_heads, slots, head_dim)``, made once; ``positions[slot]`` is the text position."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, slots: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.slots = slots
        shape = (kv_heads, slots, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.positions = np.zeros(slots, dtype=np.int64)

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """``keys`` and ``values``: ``(kv_heads, n, head_dim)`` for int64 slots ``(n,)``."""
        self.keys[layer].index_copy_(1, slots, keys)
        self.values[layer].index_copy_(1, slots, values)

    def view(self, layer: int, base: int, span: int) -> tuple[Tensor, Tensor]:
        return self.keys[layer][:, base : base + span], self.values[layer][:, base : base + span]

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots; right also where the two overlap, since everything is read before anything is written."""
        if not len(source):
            return
        device = self.keys[0].device
        read = torch.tensor(source, dtype=torch.int64, device=device)
        write = torch.tensor(target, dtype=torch.int64, device=device)
        for tensor in (*self.keys, *self.values):
            tensor.index_copy_(1, write, tensor.index_select(1, read))
        self.positions[np.asarray(target)] = self.positions[np.asarray(source)]

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))


class RegionAllocator:
    """Contiguous regions of slots, first fit, so that a request's canonical slot is its base plus the position."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.regions: list[tuple[int, int]] = []  # (base, size), by base

    def alloc(self, size: int) -> int:
        """The base of a free region. PoolFull names what is needed and what there is."""
        at = 0
        for index, (base, taken) in enumerate(self.regions):
            if base - at >= size:
                self.regions.insert(index, (at, size))
                return at
            at = base + taken
        if self.slots - at < size:
            raise PoolFull(f"the request needs {size} KV slots in a row and the pool has {self.slots} in all")
        self.regions.append((at, size))
        return at

    def free(self, base: int) -> None:
        self.regions = [region for region in self.regions if region[0] != base]

    @property
    def used(self) -> int:
        return sum(size for _, size in self.regions)
