"""A head as an engine over slots: each slot holds its keys and values, and the state that the row after it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.compute.rows import BatchRows
from actors.engines.engine import Trunk
from actors.engines.flat_batch import FlatBatch, Segment
from actors.engines.heads.head import Head, HeadSight
from actors.models import ModelInfo


class HeadEngine:
    """See :class:`actors.engines.engine.DraftEngine`."""

    def __init__(self, head: Head, trunk: Trunk, info: ModelInfo, slots: int) -> None:
        self.head, self.info = head, info
        self.device, self.dtype = trunk.device, trunk.dtype
        self.draft_vocabulary = head.covered
        self.pool = KVPool(head.shape, slots, trunk.dtype, trunk.device)
        # by stage and slot: the input of the row after it; after all slots: that of masks
        self.states = torch.zeros(head.stages, slots + 1, head.width, dtype=trunk.dtype, device=trunk.device)
        if head.mask_state is not None:
            self.states[0, slots] = head.mask_state[0]
        self.before: NDArray[np.int64] = np.arange(-1, slots - 1)  # by slot: the slot that its row reads a state of
        self.depths: NDArray[np.int64] = np.zeros(slots, np.int64)  # depth by slot: 0 in the text, 1 below the root ...

    @torch.inference_mode()
    def feed(self, slot: int, position: int, tapped: Tensor) -> None:
        """Keep the target's states of the tokens from ``position`` on, in the slots from ``slot`` on."""
        count, positions = torch.arange(len(tapped), device=self.device), np.arange(position, position + len(tapped))
        self.pool.positions[slot : slot + len(tapped)] = positions
        rows = BatchRows(count, position + count, self.pool, slot + count, HeadSight(self.pool, (), positions))
        found = self.head.feature(tapped.to(self.device, self.dtype), rows)
        if self.head.width:
            self.states[0, slot : slot + len(tapped)] = found

    @torch.inference_mode()
    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> Tensor:
        """The logits of the rows ``select``; the rows after them may read their states; those of others stay the
        target's."""
        before, last, rows = self._sent(self.before[batch.slots].tolist()), self.head.stages - 1, self._rows(batch)
        made: list[Tensor] = []
        for stage in range(last + 1):
            rows.sight = self._sight(batch, self._seen(batch.segments, stage))
            normed, after = self.head.step(self.states[stage][before], rows, stage)
            made.append(normed)
            if stage < last:  # the next stage reads it, also in this forward
                self.states[stage + 1][rows.slots] = after
        wanted = again = self._sent(range(len(before)) if select is None else select)
        normed = made[0][wanted]
        if last:
            depths = self._sent(self.depths[batch.slots].tolist())[wanted].clamp(max=last)
            normed, again = torch.stack(made)[depths, wanted], wanted[depths == last]
        self.states[last][rows.slots[again]] = after[again]  # the last stage goes on by itself
        return self.head.logits(normed) if len(wanted) else normed

    @torch.inference_mode()
    def ahead(self, batch: FlatBatch) -> tuple[Tensor, Tensor]:
        """Float32 logits of all rows, with blocks in the places of their texts, and the states after them."""
        assert self.head.block is not None
        rows = self._rows(batch, self.head.block.causal)
        x, _ = self.head.step(self.states[0][self._sent(self.before[batch.slots].tolist())], rows, 0)
        return self.head.logits(x), x

    def _rows(self, batch: FlatBatch, causal: Sequence[bool] = ()) -> BatchRows:
        ids, positions, slots = map(self._sent, (batch.tokens, batch.positions, batch.slots))
        self.pool.positions[batch.slots] = batch.positions
        return BatchRows(ids, positions, self.pool, slots, self._sight(batch, batch.segments, causal))

    def _sight(self, batch: FlatBatch, segments: Sequence[Segment], causal: Sequence[bool] = ()) -> HeadSight:
        positions = np.asarray(batch.positions)
        return HeadSight(self.pool, segments, positions, self.head.windows, causal, self.depths[batch.slots])

    def _seen(self, segments: Sequence[Segment], stage: int) -> Sequence[Segment]:
        """A stage has no rows of the text's first tokens: those before them gave no states."""
        if not stage:
            return segments
        found = []
        for one in segments:
            visible = one.visible & (self.pool.positions[one.base : one.base + one.span] > stage)
            blind = ~visible.any(1)
            visible[blind] = one.visible[blind]  # such rows are computed with the others, and no row sees them
            found.append(replace(one, visible=visible))
        return found

    def pick(self, *forward: object) -> None:
        """See :class:`actors.engines.engine.Engine`: it cannot choose tokens."""

    def _sent(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)
