"""The fused decoder of a float32 target on a CPU where numba is: torch's matrix products, and our kernels between them.

What torch does between the products of one row's forward takes longer than reading the weights of a small model: some
forty operations a layer, most of them on a few hundred numbers.
"""

from __future__ import annotations

import importlib.util
import logging
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.attention import MAX_ROUND
from actors.engines.backends.llama.batch import Batch
from actors.engines.backends.llama.torch_body import TorchBody
from actors.engines.backends.llama.weights import Shape, Weights
from actors.engines.pool import KVPool

Array = NDArray[np.float32]
log = logging.getLogger("duoactor.engines")


def compiled_kernels() -> ModuleType | None:
    """The kernels, compiled or read from numba's cache; None without numba, or where it cannot keep or compile them."""
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        from actors.engines.backends.llama import kernels
    except Exception as error:
        log.warning(
            "numba does not compile the decoder's kernels, so that torch's slower operations are used: %s", error
        )
        return None
    return kernels


def fits(shape: Shape, lanes: int) -> bool:
    return shape.width % lanes == 0 and shape.hidden % lanes == 0


class CompiledBody(TorchBody):
    """Rows' bits depend on what they see alone, as in :class:`TorchBody`, but are not that one's."""

    def __init__(self, weights: Weights, pool: KVPool, kernels: ModuleType) -> None:
        super().__init__(weights, pool, torch.float32, int8=False, exact=True)
        self._kernels = kernels
        self._table: Array = self.embedding.numpy()
        self._keys: list[Array] = [keys.numpy() for keys in pool.keys]
        self._values: list[Array] = [values.numpy() for values in pool.values]
        unnormed = np.zeros((0, self.shape.width), dtype=np.float32)
        norms = [(b.input_norm, b.query_norm, b.inner_norm) for b in self.blocks]
        self._norms: list[tuple[Array, Array, Array]] = [
            (first.numpy(), unnormed if heads is None else heads.numpy(), inner.numpy())
            for first, heads, inner in norms
        ]
        self._last_norm: Array = self.norm.numpy()

    def run(self, batch: Batch) -> Tensor:
        if any(segment.rows > MAX_ROUND for segment in batch.segments):  # of a prompt: torch's attention is quicker
            return super().run(batch)
        kernels, shape, eps = self._kernels, self.shape, self.shape.eps
        rows, count = len(batch.tokens), len(batch.slots)
        slots = np.array(batch.slots, dtype=np.int64)
        turns: Array = torch.view_as_real(batch.turns).numpy().reshape(rows, -1)
        places, counts = self._seen(batch)
        scores = np.empty(places.shape[1] + kernels.LANES, dtype=np.float32)
        x = self._table.take(batch.tokens[:count], 0)
        # rows that only fill the batch up stay zeros, and nothing but the matrix products computes them
        normed, seen, gated = (torch.zeros(rows, n) for n in (shape.hidden, shape.heads * shape.width, shape.inner))
        normed_rows, seen_rows, gated_rows = normed.numpy(), seen.numpy(), gated.numpy()
        kernels.norm(x, self._norms[0][0], eps, normed_rows)
        after = [norms[0] for norms in self._norms[1:]] + [self._last_norm]
        for block, (_, heads, inner), following, keys, values in zip(
            self.blocks, self._norms, after, self._keys, self._values, strict=True
        ):
            qkv = block.qkv.multiply(normed).numpy()
            kernels.turn_and_store(qkv, turns, heads, eps, keys, values, slots)
            kernels.attend(qkv, keys, values, places, counts, shape.width**-0.5, scores, seen_rows)
            kernels.add_and_norm(x, block.out.multiply(seen).numpy(), block.out.scale, inner, eps, normed_rows)
            kernels.gated(block.gate_up.multiply(normed).numpy(), count, gated_rows)
            kernels.add_and_norm(x, block.down.multiply(gated).numpy(), block.down.scale, following, eps, normed_rows)
        return self.head.multiply(normed if batch.keep is None else normed[batch.keep])

    def _seen(self, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of every row the slots that it sees, and how many."""
        count = len(batch.slots)
        places = np.empty((count, max(segment.span for segment in batch.segments)), dtype=np.int64)
        counts = np.empty(count, dtype=np.int64)
        first = 0
        for segment in batch.segments:
            self._kernels.collect(np.ascontiguousarray(segment.visible), segment.base, first, places, counts)
            first += segment.rows
        return places, counts
