"""The KV pool: a slot holds one token's keys and values in all layers. To roll back is to forget slots. And the
allocator of regions of slots."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.memory import give_back, zeros
from protocols.errors import PoolFull

BLOCK = 64  # slots that are given back to the system together
MAX_VIEWS = 256  # spans with cached views: more than a round has

# One layer: its keys (kv_heads, width, span) in one or more parts, its values in blocks (kv_heads, <= block, width).
LayerView = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one slot holds: of each layer how many heads of keys, and their width."""

    heads: tuple[tuple[int, int], ...]

    @classmethod
    def alike(cls, layers: int, kv_heads: int, width: int) -> KVShape:
        """The shape of layers that are all the same."""
        return cls(((kv_heads, width),) * layers)

    def slot_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of a slot: keys and values of all layers."""
        return 2 * sum(kv_heads * width for kv_heads, width in self.heads) * dtype.itemsize


class KVPool:
    """Two tensors ``(kv_heads, slots, width)`` for each layer, allocated once. Layers with the same heads are one
    tensor, so that one operation copies a slot of all."""

    def __init__(
        self, shape: KVShape, slots: int, dtype: torch.dtype, device: torch.device | str, spare: int = 0
    ) -> None:
        """``spare``: unread slots behind the others, for the padding rows of a round."""
        self.slots = slots
        kinds = list(dict.fromkeys(shape.heads))
        self._layers = [[layer for layer, own in enumerate(shape.heads) if own == kind] for kind in kinds]
        # (layers, keys and values, kv_heads, slots, width) of each kind
        allocated = [
            zeros((len(layers), 2, kv_heads, slots + spare, width), dtype, torch.device(device))
            for layers, (kv_heads, width) in zip(self._layers or [[]], kinds or [(1, 1)], strict=True)
        ]
        self.parts = [part for part, _ in allocated]
        self._pages = [pages for _, pages in allocated]
        by_layer = {
            layer: one
            for layers, part in zip(self._layers, self.parts, strict=False)
            for layer, one in zip(layers, part, strict=True)
        }
        self._both = [by_layer[layer] for layer in range(len(shape.heads))]
        self.keys, self.values = [both[0] for both in self._both], [both[1] for both in self._both]
        # the same memory as bytes, for copies of few slots on a CPU: torch's take 110 us after a forward
        on_cpu = self.parts[0].is_cpu
        self._host: list[NDArray[np.uint8]] | None = (
            [part.view(torch.uint8).numpy() for part in self.parts] if on_cpu else None
        )
        self.positions = np.zeros(slots + spare, dtype=np.int64)  # position of the token in each slot, in its text
        # a stream has the same span for up to 64 tokens, and making its views costs as much as a layer's attention
        self.views = functools.lru_cache(maxsize=MAX_VIEWS)(self._views)

    def _views(self, base: int, span: int, block: int) -> list[LayerView]:
        """Each layer's view of the slots ``base .. base + span``, with values in blocks of ``block`` slots."""
        found: dict[int, LayerView] = {}
        for layers, part in zip(self._layers, self.parts, strict=False):
            keys, values = part[:, :, :, base : base + span].unbind(1)
            blocks = [some.unbind() for some in torch.split(values, block, 2)]
            each = zip(zip(keys.transpose(2, 3).unbind(), strict=True), zip(*blocks, strict=True), strict=True)
            found |= dict(zip(layers, each, strict=True))
        return [found[layer] for layer in range(len(self._both))]

    def view(self, layer: int, base: int, span: int) -> tuple[Tensor, Tensor]:
        """The keys and values ``(kv_heads, span, width)`` of consecutive slots, not copied."""
        return self.keys[layer][:, base : base + span], self.values[layer][:, base : base + span]

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values ``(kv_heads, n, width)`` in the int64 ``slots`` ``(n,)``. Unlike ``view`` it
        can be recorded in a CUDA graph, because the slots are data."""
        keys, values = self._both[layer].index_select(2, slots).unbind()
        return keys, values

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots; all are read before any is written."""
        if not len(source):
            return
        if self._host is None:
            self._copy_on_device(source, target)
        else:
            for part in self._host:
                part[:, :, :, target] = part[:, :, :, source]
        self.positions[target] = self.positions[source]

    def _copy_on_device(self, source: Sequence[int], target: Sequence[int]) -> None:
        read = torch.tensor(source, dtype=torch.int64, device=self.device)
        write = torch.tensor(target, dtype=torch.int64, device=self.device)
        for part in self.parts:
            part.index_copy_(3, write, part.index_select(3, read))

    def duplicate(self, source: int, target: int, count: int) -> None:
        """Copy ``count`` consecutive slots, without a temporary copy; source and target must not overlap."""
        for part in self.parts:
            part[:, :, :, target : target + count] = part[:, :, :, source : source + count]
        self.positions[target : target + count] = self.positions[source : source + count]

    def give_back(self, base: int, count: int) -> None:
        """Give the memory of consecutive slots back, as far as the system takes it. No slot is read before it is
        written again."""
        for part, pages in zip(self.parts, self._pages, strict=True):
            if pages is None:
                continue
            size = part.shape[-1] * part.element_size()
            for first in range(base * size, part.numel() * part.element_size(), part.shape[-2] * size):
                give_back(pages, first, first + count * size)

    @property
    def slot_bytes(self) -> int:
        return sum(part[:, :, :, 0].numel() * part.element_size() for part in self.parts)

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype


def _blocks(base: int, size: int) -> slice:
    """The blocks that have slots of a region."""
    return slice(base // BLOCK, -(-(base + size) // BLOCK))


class RegionAllocator:
    """Contiguous regions of slots, first fit, so that a request's canonical slot is its base plus the position."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.regions: list[tuple[int, int]] = []  # (base, size), by base
        self._had = np.zeros(-(-slots // BLOCK), np.bool_)  # blocks that regions have had since they were given back

    def alloc(self, size: int) -> int:
        """The base of a free region of ``size`` slots, which is taken now. Raises PoolFull."""
        at = self.gap(size)
        if at is None:
            raise PoolFull(f"the request needs {size} KV slots in a row and the pool has {self.slots} in all")
        bisect.insort(self.regions, (at, size))
        self._take(at, size)
        return at

    def gap(self, size: int, ignoring: Container[int] = ()) -> int | None:
        """First of ``size`` consecutive free slots, as if the regions at the bases ``ignoring`` were free as well;
        None: there are none."""
        at = 0
        for base, taken in self.regions:
            if base in ignoring:
                continue
            if base - at >= size:
                return at
            at = base + taken
        return at if self.slots - at >= size else None

    def resize(self, base: int, size: int) -> bool:
        """Give the region at ``base`` another size; False if the next one is in the way."""
        index = next(i for i, region in enumerate(self.regions) if region[0] == base)
        end = self.regions[index + 1][0] if index + 1 < len(self.regions) else self.slots
        if base + size > end:
            return False
        self.regions[index] = (base, size)
        self._take(base, size)
        return True

    def arrange(self, places: Mapping[int, int]) -> None:
        """Move regions. ``places``: their new bases by the present ones."""
        self.regions = sorted((places.get(base, base), size) for base, size in self.regions)
        for region in self.regions:
            self._take(*region)

    def free(self, base: int) -> None:
        self.regions = [region for region in self.regions if region[0] != base]

    def _take(self, base: int, size: int) -> None:
        self._had[_blocks(base, size)] = True

    def give_back(self) -> list[tuple[int, int]]:
        """(first, how many) of the slots that no region has, and one has had since this was last called."""
        idle = self._had.copy()
        for base, size in self.regions:
            idle[_blocks(base, size)] = False
        self._had &= ~idle
        borders = np.flatnonzero(np.diff(idle, prepend=False, append=False)) * BLOCK
        return [(int(first), min(int(end), self.slots) - int(first)) for first, end in borders.reshape(-1, 2)]

    @property
    def used(self) -> int:
        """Slots that are in regions."""
        return sum(size for _, size in self.regions)
