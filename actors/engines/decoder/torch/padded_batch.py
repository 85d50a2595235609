"""One forward of the fused decoder, as its bodies take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.layout import DecoderShape
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.decoder.torch.branches import View, view
from actors.engines.decoder.torch.causal_attention import CausalAttention
from actors.engines.flat_batch import SPAN, Segment


@dataclass(slots=True)
class PaddedBatch:
    """``rows`` rows, of which those beyond ``len(slots)`` repeat the last one: they are computed and thrown away.

    They belong to the last segment. Their keys and values are not written.
    """

    tokens: Sequence[int]  # (rows,)
    turns: Tensor  # complex64 (rows, width / 2): the rotation at each row's position
    slots: Sequence[int]
    segments: Sequence[Segment]
    keep: list[int] | None  # rows with wanted logits; None: all

    def attention(self, pool: KVPool, shape: DecoderShape, exact: bool = True) -> PoolAttention | CausalAttention:
        """What the rows see of the pool, as :mod:`actors.engines.decoder.torch.attention` looks at it, or on a GPU
        :mod:`actors.engines.decoder.torch.causal_attention`."""
        if pool.device.type == "cuda" and len(self.segments) == 1 and self.segments[0].prompt:
            return CausalAttention(pool, self.segments[0], shape.width**-0.5)
        views = [view(segment, SPAN) if exact else View(segment.visible) for segment in self.segments]
        stretches = [
            Stretch(segment.base, segment.span, torch.from_numpy(mask).to(pool.device, pool.dtype), look.copies)
            for segment, look, mask in zip(self.segments, views, self.masks(views), strict=True)
        ]
        return PoolAttention(pool, stretches, shape.heads, shape.width**-0.5, exact=exact)

    def masks(self, views: Sequence[View | Segment]) -> list[NDArray[np.float32]]:
        """Of every segment ``(rows, span)``: 0 where visible, else -inf."""
        masks = [np.where(look.visible, np.float32(0), np.float32(-np.inf)) for look in views]
        extra = len(self.tokens) - len(self.slots)
        if extra:
            masks[-1] = np.concatenate([masks[-1], masks[-1][-1:].repeat(extra, 0)])
        return masks
