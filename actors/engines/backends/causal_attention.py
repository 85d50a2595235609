"""Attention of a piece of a prompt on a GPU: torch's own kernels, which never store scores, and no mask at all.

Their bits depend on the shapes, and a prompt is always cut in the same way (:mod:`actors.engines.targets.target`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from actors.engines.cache.pool import KVPool
from actors.engines.flat_batch import Segment


class CausalAttention:
    """One segment's, whose rows are consecutive tokens behind all that they see. Called in every layer."""

    def __init__(self, pool: KVPool, segment: Segment, scale: float) -> None:
        self._pool, self._base, self._scale = pool, segment.base, scale
        self._length = int(segment.visible[-1].sum())
        self._mask = causal_lower_right(segment.rows, self._length)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for 50 to 90 ms whenever a prompt has a new length

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """``(rows, heads * width)`` from queries ``(rows, heads, width)``."""
        keys, values = self._pool.view(layer, self._base, self._length)
        seen = functional.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=self._mask,
            scale=self._scale,
            enable_gqa=queries.shape[1] != len(keys),
        )
        return seen[0].transpose(0, 1).flatten(1)
