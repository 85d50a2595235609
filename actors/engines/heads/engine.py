"""A head as an engine over slots: each slot holds its keys and values, and the state that the row behind it reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.engine import Trunk
from actors.engines.flat_batch import FlatBatch
from actors.engines.heads.head import Head, Look
from actors.models import ModelInfo


class HeadEngine:
    """What :class:`actors.engines.drafts.draft.Draft` asks of an engine."""

    recurrence = best = None
    text_matters = has_spare_cpus = False

    def __init__(self, head: Head, trunk: Trunk, info: ModelInfo, slots: int) -> None:
        self.head, self.info = head, info
        self.device, self.dtype = trunk.device, trunk.dtype
        self.draft_vocabulary = head.covered
        self.pool = KVPool(head.shape, slots, trunk.dtype, trunk.device)
        self.states = torch.zeros(slots, head.width, dtype=trunk.dtype, device=trunk.device)
        self.before: NDArray[np.int64] = np.arange(-1, slots - 1)  # by slot: whose state its row reads

    def use_spare_cpus(self, used: bool) -> None:
        raise NotImplementedError("it has none")

    def trunk(self) -> Trunk:
        raise NotImplementedError("nothing reads a head's states")

    def tap(self, layers: Sequence[int]) -> None:
        raise NotImplementedError("nothing reads a head's states")

    @property
    def tapped(self) -> Tensor:
        raise NotImplementedError("nothing reads a head's states")

    @torch.inference_mode()
    def feed(self, slot: int, tapped: Tensor) -> None:
        """What the target's layers gave of the tokens in the slots from ``slot`` on."""
        self.states[slot : slot + len(tapped)] = self.head.feature(tapped.to(self.device, self.dtype))

    @torch.inference_mode()
    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> Tensor:
        """The logits of the rows ``select``, whose states the rows behind them may read; those of others stay the
        target's."""
        slots, places, ids = self._sent(batch.slots), self._sent(batch.positions), self._sent(batch.tokens)
        states = self.states[self._sent(self.before[batch.slots].tolist())]
        normed, after = self.head.step(ids, states, Look(self.pool, batch.segments, slots, places))
        if select is not None:
            rows = self._sent(select)
            slots, normed, after = slots[rows], normed[rows], after[rows]
        self.states[slots] = after
        return self.head.logits(normed) if len(slots) else normed

    def pick(self, *forward: object) -> None:
        """See :class:`actors.engines.engine.Engine`: it cannot choose tokens."""

    def _sent(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)
