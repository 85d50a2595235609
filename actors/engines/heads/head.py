"""The interface of a draft head's arithmetic, which knows neither texts nor trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from actors.engines.cache.pool import KVPool, KVShape
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.flat_batch import Segment
from actors.engines.weights.draft_vocabulary import DraftVocabulary


class Look:
    """What the rows of one forward see of the pool of a head's keys and values."""

    def __init__(self, pool: KVPool, segments: Sequence[Segment], slots: Tensor, positions: Tensor) -> None:
        """``slots`` int64 ``(rows,)``: where each row's keys and values lie; ``positions``: in its text."""
        self.pool, self.slots, self.positions = pool, slots, positions
        self._segments = segments
        self._attention: PoolAttention | None = None

    def __call__(self, layer: int, queries: Tensor, scale: float) -> Tensor:
        """``(rows, heads * width)`` from queries ``(rows, heads, width)``, with keys and values in the pool."""
        if self._attention is None:
            device = self.pool.device
            masks = [np.where(one.visible, np.float32(0), np.float32(-np.inf)) for one in self._segments]
            stretches = [
                Stretch(one.base, one.span, torch.from_numpy(mask).to(device, queries.dtype))
                for one, mask in zip(self._segments, masks, strict=True)
            ]
            self._attention = PoolAttention(self.pool, stretches, queries.shape[1], scale, exact=False)
        return self._attention(layer, queries)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Of every row, ``(kv_heads, rows, width)``."""
        self.pool.write(layer, self.slots, keys, values)


class Head(Protocol):
    """A row is a token and the state before it: the target's, or what the head made of the row before."""

    taps: tuple[int, ...]  # layers of the target that it reads states of, see ``Engine.tap``
    width: int  # of the states that its rows read
    shape: KVShape
    stages: int  # layers that take turns: the first for a round's first token, the second for the next ...
    covered: DraftVocabulary | None  # tokens that its logits stand for; None: all

    def feature(self, tapped: Tensor) -> Tensor:
        """States ``(rows, width)`` out of what the target's layers gave."""
        ...

    def step(self, ids: Tensor, states: Tensor, look: Look, stage: int) -> tuple[Tensor, Tensor]:
        """What logits are made of, and the states that the next rows read."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """float32, of the tokens that it covers."""
        ...


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
