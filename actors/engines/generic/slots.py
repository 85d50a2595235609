"""Attention of transformers' layers over the slots of a pool, and their products on a CPU."""

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
from actors.engines.compute.sight import PoolSight
from actors.engines.decoder.cpu.panels import Panels
from actors.engines.decoder.spec import Attention
from actors.engines.flat_batch import FlatBatch, Segment
from actors.engines.weights.matrix import Matrix


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
        self._sight: PoolSight | None = None

    def begin(self, batch: FlatBatch) -> None:
        """The rows of the next forward."""
        pool = self._cache.pool
        self._segments, self._sight = batch.segments, PoolSight(pool, batch, self._exact)
        self._cache.slots = torch.tensor(batch.slots, dtype=torch.int64, device=pool.device)

    def __call__(self, module: nn.Module, query: Tensor, *given: object, **options: Any) -> tuple[Tensor, None]:
        """As transformers calls it in every layer, with query ``(1, heads, n, d)``. Returns ``(1, n, heads, d)``.
        ``s_aux`` of ``options``: sinks."""
        assert self._sight is not None, "begin comes first"
        _, heads, rows, width = query.shape
        window, scale, cap = options.get("sliding_window") or 0, options.get("scaling"), options.get("softcap") or 0.0
        scale = width**-0.5 if scale is None else scale
        kind = Attention(heads, self._cache.pool.parts[0].shape[2], width, scale, (), "", window=window, cap=cap)
        place = self._cache.places[module.layer_idx]  # type: ignore[index]
        out = self._sight(place, kind, query[0].transpose(0, 1), options.get("s_aux"))
        return out.view(1, rows, heads, -1), None

    def lengths(self) -> NDArray[np.int64]:
        """For every row of the forward under way, how long its request's text may become."""
        # the plain forward that a model is compared with has no segments
        rows = [segment.rows for segment in self._segments] or [1]
        return np.repeat([segment.text for segment in self._segments] or [0], rows)


def without_owning(attention: SlotAttention, method: Callable[..., Any]) -> Callable[..., Any]:
    """transformers keeps its arguments for ever: this does not keep the engine, its weights and its pool."""
    owner = weakref.ref(attention)

    def call(*args: Any, **kwargs: Any) -> Any:
        attention = owner()
        assert attention is not None, "the engine outlives its model"
        return method(attention, *args, **kwargs)

    return call


class PanelLinear(nn.Module):
    """``y = x W^T + b`` for x ``(..., in)`` by compiled code, with bits of each row's own."""

    def __init__(self, weight: Tensor, bias: Tensor | None, team: Any) -> None:
        super().__init__()
        self.panels = Panels(Matrix(weight.detach(), None if bias is None else bias.detach()), team)
        self.weight = weight.new_empty(0)  # transformers reads a layer's dtype

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).float().contiguous().numpy()
        return torch.from_numpy(self.panels.multiply(rows)).view(*x.shape[:-1], -1).to(x.dtype)


def use_panels(model: nn.Module, team: Any) -> None:
    """Replace each ``nn.Linear`` of a model. Weights are freed that no embedding shares."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PanelLinear(child.weight, child.bias, team))


def read_bytes(model: nn.Module, config: Any) -> int:
    """What one token's forward reads of a model's weights: of experts the chosen ones, of an embedding next to
    nothing."""
    count = getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0) or 0
    share = getattr(config, "num_experts_per_tok", count) / count if count else 1.0
    size = 0.0
    for name, module in model.named_modules():
        own = sum(weight.numel() * weight.element_size() for weight in module.parameters(recurse=False))
        own = module.panels.size if isinstance(module, PanelLinear) else own
        size += 0 if isinstance(module, nn.Embedding) else own * (share if "experts" in name else 1.0)
    return int(size)
