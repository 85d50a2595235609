"""What changes from one decode round to the next, packed on the host and copied to the device in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.gpu.in_place import MAX_ROWS, RoundPlan

NO_STATES = np.zeros(0, np.int32)


class Sent(NamedTuple):
    """A round on its device."""

    tokens: Tensor  # int64 (rows,), as are
    positions: Tensor
    slots: Tensor
    states: Tensor  # int32, inputs of its recurrent layers
    told: Tensor  # uint8, inputs of its attention, then others


class RoundBuffer:
    """Three int32 numbers of every row, inputs of recurrent layers, then inputs of attention."""

    def __init__(self, most: int, device: torch.device) -> None:
        """``most``: bytes of inputs of recurrent layers and of an attention."""
        size = 12 * MAX_ROWS + most
        self._pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._host: NDArray[np.uint8] = self._pinned.numpy()
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def send(
        self,
        plan: RoundPlan,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        spare: int,
        states: NDArray[np.int32] = NO_STATES,
    ) -> None:
        """Rows beyond those of the tokens repeat the last one, but write into slots ``spare ..``. ``states``: the
        indices of recurrent layers."""
        if self._sent is not None:
            self._sent.synchronize()  # the last round's copy may still be reading the pinned memory
        count, rows = len(tokens), plan.rows
        begin = 12 * rows + states.nbytes
        end = begin + plan.bytes
        ids, turns, where = self._host[: 12 * rows].view(np.int32).reshape(3, rows)
        ids[:count], ids[count:] = tokens, tokens[-1]
        turns[:count], turns[count:] = positions, positions[-1]
        where[:count], where[count:] = slots, range(spare, spare + rows - count)
        self._host[12 * rows : begin].view(np.int32)[:] = states
        plan.pack(self._host[begin:end])
        self._device[:end].copy_(self._pinned[:end], non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))

    def clear(self) -> None:
        """A round of tokens 0 in slot 0 that sees nothing."""
        self._device.zero_()

    def unpack(self, rows: int, states: int = 0) -> Sent:
        """``states``: how many inputs recurrent layers have."""
        tokens, positions, slots = self._device[: 12 * rows].view(torch.int32).long().view(3, rows).unbind()
        begin = 12 * rows + 4 * states
        return Sent(tokens, positions, slots, self._device[12 * rows : begin].view(torch.int32), self._device[begin:])
