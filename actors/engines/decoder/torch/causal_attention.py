"""Attention of a piece of a prompt on a GPU: torch's own kernels, which never store scores.

Their bits depend on the shapes, and a prompt is always cut in the same way (:mod:`actors.engines.targets.target`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.cache.pool import KVPool
from actors.engines.flat_batch import Segment


class CausalAttention:
    """One segment's; its rows are consecutive tokens behind all that they see. Called in every layer."""

    def __init__(self, pool: KVPool, segment: Segment) -> None:
        self._pool, self._base = pool, segment.base
        rows, self._length = segment.rows, int(segment.visible[-1].sum())
        self._from_the_start = rows == self._length
        self._sees: Tensor | None = None
        if not self._from_the_start:
            ones = torch.ones(rows, self._length, dtype=torch.bool, device=pool.device)
            self._sees = ones.tril(self._length - rows)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for 50 to 90 ms whenever a prompt has a new length

    def __call__(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """``(rows, heads * width)`` from queries ``(rows, heads, width)``."""
        rows, heads, width = queries.shape
        keys, values = self._pool.view(layer, self._base, self._length)
        group = heads // len(keys)
        seen = functional.scaled_dot_product_attention(
            queries.transpose(0, 1).view(len(keys), group, rows, width),
            keys[:, None].expand(-1, group, -1, -1),  # not every kernel of torch's knows grouped queries
            values[:, None].expand(-1, group, -1, -1),
            attn_mask=self._sees,
            is_causal=self._from_the_start,
            scale=scale,
        )
        return seen.permute(2, 0, 1, 3).reshape(rows, -1)
