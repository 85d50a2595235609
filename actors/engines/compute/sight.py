"""What the rows of a forward see, for attention in torch over the slots of a pool."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.spec import Attention
from actors.engines.decoder.torch.attention import PoolAttention, Stretch, attend_prompt
from actors.engines.decoder.torch.branches import View, view
from actors.engines.flat_batch import SPAN, FlatBatch, Segment


class PoolSight:
    """See :class:`actors.engines.compute.rows.SlotSight`. Masks are made once for all layers that look back alike."""

    def __init__(self, pool: KVPool, batch: FlatBatch, exact: bool) -> None:
        """``exact``: a row has the bits of plain decoding on every branch of a window; drafts do not need that."""
        self._pool, self._segments, self._exact = pool, batch.segments, exact
        self._positions: NDArray[np.int64] = np.asarray(batch.positions, dtype=np.int64)
        pool.positions[np.asarray(batch.slots)] = self._positions
        self._views = [view(each, SPAN) if exact else View(each.visible) for each in batch.segments]
        self._stretched: dict[tuple[int, bool], list[Stretch]] = {}
        self._attention: dict[tuple[object, ...], PoolAttention] = {}
        one = batch.segments[0] if len(batch.segments) == 1 else None
        causal = pool.device.type == "cuda" and one is not None and one.prompt
        self._causal = CausalAttention(pool, one) if causal and one is not None else None

    def __call__(self, place: int, attention: Attention, queries: Tensor, sinks: Tensor | None) -> Tensor:
        if self._causal is not None and not (attention.window or attention.cap or sinks is not None):
            return self._causal(place, queries, attention.scale)
        heads = attention.heads, attention.kv_heads
        kind = (attention.window, attention.chunked, heads, attention.scale, attention.cap)
        if kind not in self._attention:
            stretches, cap = self._stretches(attention.window, attention.chunked), attention.cap or None
            self._attention[kind] = PoolAttention(self._pool, stretches, heads, attention.scale, cap, self._exact)
        return self._attention[kind](place, queries, sinks)

    def _stretches(self, window: int, chunked: bool) -> list[Stretch]:
        found = self._stretched.get((window, chunked))
        if found is None:
            starts = np.cumsum([0, *(segment.rows for segment in self._segments)])
            each = zip(self._segments, self._views, starts[:-1], strict=True)
            found = [self._stretch(*one, window, chunked) for one in each]
            self._stretched[window, chunked] = found
        return found

    def _stretch(self, segment: Segment, look: View, start: int, window: int, chunked: bool) -> Stretch:
        visible, pool = look.visible, self._pool
        if window:
            rows = self._positions[start : start + segment.rows, None]
            slots = np.append(np.arange(segment.base, segment.base + segment.span), look.copies)
            first = rows // window * window if chunked else rows - window + 1
            visible = visible & (pool.positions[slots] >= first)
        mask = torch.from_numpy(np.where(visible, np.float32(0), np.float32(-np.inf)))
        return Stretch(segment.base, segment.span, mask.to(pool.device, pool.dtype), look.copies)


class CausalAttention:
    """Attention of a piece of a prompt on a GPU: consecutive tokens, whose scores torch's own kernels never store.

    Their bits depend on the shapes, and a prompt is always cut in the same way (:mod:`actors.engines.targets.target`).
    """

    def __init__(self, pool: KVPool, segment: Segment) -> None:
        self._pool, self._base = pool, segment.base
        rows, self._length = segment.rows, int(segment.visible[-1].sum())
        self._sees: Tensor | None = None
        if rows < self._length:
            ones = torch.ones(rows, self._length, dtype=torch.bool, device=pool.device)
            self._sees = ones.tril(self._length - rows)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans for 50 to 90 ms whenever a prompt has a new length

    def __call__(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """``(rows, heads * width)`` from queries ``(rows, heads, width)``."""
        keys, values = self._pool.view(layer, self._base, self._length)
        seen = attend_prompt(queries.transpose(0, 1), keys, values, self._sees, scale)
        return seen.transpose(0, 1).flatten(1)
