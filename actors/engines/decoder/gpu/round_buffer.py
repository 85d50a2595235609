"""What changes from one decode round to the next, packed on the host and copied to the device in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.gpu.in_place import MAX_ROWS, RoundPlan


class Sent(NamedTuple):
    """A round on its device."""

    tokens: Tensor  # int64 (rows,), as are
    positions: Tensor
    slots: Tensor
    told: Tensor  # uint8, what its attention is told, and more behind it


class RoundBuffer:
    """Three int32 numbers of every row, then what its attention is told."""

    def __init__(self, most: int, device: torch.device) -> None:
        """``most``: bytes that an attention is told."""
        size = 12 * MAX_ROWS + most
        self._pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._host: NDArray[np.uint8] = self._pinned.numpy()
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def send(
        self, plan: RoundPlan, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int], spare: int
    ) -> None:
        """Rows beyond those of the tokens repeat the last one, but write into slots ``spare ..``."""
        if self._sent is not None:
            self._sent.synchronize()  # the last round's copy may still be reading the pinned memory
        count, rows = len(tokens), plan.rows
        end = 12 * rows + plan.bytes
        ids, turns, where = self._host[: 12 * rows].view(np.int32).reshape(3, rows)
        ids[:count], ids[count:] = tokens, tokens[-1]
        turns[:count], turns[count:] = positions, positions[-1]
        where[:count], where[count:] = slots, range(spare, spare + rows - count)
        plan.pack(self._host[12 * rows : end])
        self._device[:end].copy_(self._pinned[:end], non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))

    def unpack(self, rows: int) -> Sent:
        tokens, positions, slots = self._device[: 12 * rows].view(torch.int32).long().view(3, rows).unbind()
        return Sent(tokens, positions, slots, self._device[12 * rows :])
