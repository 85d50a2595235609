"""Attention of transformers' layers over the slots of a pool."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.cache_utils import Cache

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.decoder.torch.branches import View, view
from actors.engines.flat_batch import SPAN, FlatBatch, Segment


class SlotCache(Cache):  # type: ignore[misc]
    """A KV cache for transformers: it writes into the slots of the forward, and returns only the new keys and values,
    since the attention function reads the pool."""

    def __init__(self, pool: KVPool, layers: Sequence[int]) -> None:
        """``layers``: indices of the attending layers, in the pool's order."""
        super().__init__(layers=[])
        self.pool = pool
        self.places = {layer: place for place, layer in enumerate(layers)}
        self.slots: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.pool.write(self.places[layer_idx], self.slots, key_states[0], value_states[0])  # type: ignore[arg-type]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.pool.slots


class SlotAttention:
    """The attention function of one model: the rows of a forward see their segments' parts of the pool."""

    def __init__(self, cache: SlotCache, exact: bool) -> None:
        """``exact``: on every branch of a window with the bits of plain decoding."""
        self._cache, self._exact = cache, exact
        self._segments: Sequence[Segment] = ()
        self._views: Sequence[View] = ()
        self._positions: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._kinds: dict[tuple[Any, ...], PoolAttention] = {}  # by what a layer asks for

    def begin(self, batch: FlatBatch) -> None:
        """The rows of the next forward."""
        pool = self._cache.pool
        self._positions = np.asarray(batch.positions, dtype=np.int64)
        pool.positions[np.asarray(batch.slots)] = self._positions
        self._segments, self._kinds = batch.segments, {}
        self._views = [view(each, SPAN) if self._exact else View(each.visible) for each in batch.segments]
        self._cache.slots = torch.tensor(batch.slots, dtype=torch.int64, device=pool.device)

    def __call__(self, module: nn.Module, query: Tensor, *given: object, **options: Any) -> tuple[Tensor, None]:
        """As transformers calls it in every layer, with query ``(1, heads, n, d)``. Returns ``(1, n, heads, d)``. Of
        ``options``, ``s_aux``: see ``sinks`` of :class:`PoolAttention`."""
        window, scale, cap = options.get("sliding_window") or 0, options.get("scaling"), options.get("softcap")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        kind = (window, query.shape[1], scale, cap)
        look = self._kinds.get(kind)
        if look is None:  # made once for each forward and kind of layer
            pool = self._cache.pool
            heads = query.shape[1], pool.parts[0].shape[2]
            look = PoolAttention(pool, self._stretches(window), heads, scale, cap)
            self._kinds[kind] = look
        place = self._cache.places[module.layer_idx]  # type: ignore[index]
        out = look(place, query[0].transpose(0, 1), options.get("s_aux"))
        return out.view(1, query.shape[2], query.shape[1], -1), None

    def lengths(self) -> NDArray[np.int64]:
        """For every row of the forward under way, how long its request's text may become."""
        # the plain forward that a model is compared with has no segments
        rows = [segment.rows for segment in self._segments] or [1]
        return np.repeat([segment.text for segment in self._segments] or [0], rows)

    def _stretches(self, window: int) -> list[Stretch]:
        """The segments with additive masks, of layers that look back ``window`` tokens (0: all of them)."""
        stretches: list[Stretch] = []
        pool, start = self._cache.pool, 0
        for segment, look in zip(self._segments, self._views, strict=True):
            visible = look.visible
            if window:
                rows = self._positions[start : start + segment.rows, None]
                slots = np.append(np.arange(segment.base, segment.base + segment.span), look.copies)
                visible = visible & (rows - pool.positions[slots] < window)
            host = np.where(visible, np.float32(0), np.float32(-np.inf))
            stretches.append(Stretch(segment.base, segment.span, torch.from_numpy(host).to(pool.device), look.copies))
            start += segment.rows
        return stretches


def without_owning(attention: SlotAttention, method: Callable[..., Any]) -> Callable[..., Any]:
    """transformers keeps its arguments for ever: this does not keep the engine, its weights and its pool."""
    owner = weakref.ref(attention)

    def call(*args: Any, **kwargs: Any) -> Any:
        attention = owner()
        assert attention is not None, "the engine outlives its model"
        return method(attention, *args, **kwargs)

    return call
