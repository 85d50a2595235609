"""What changes from one decode round to the next, packed on the host and copied to the device in one piece."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.decoder.torch.body import Look
from actors.engines.flat_batch import Segment

MAX_ROWS = 256  # their logits take 155 MB with a vocabulary of 152,000


def power_bucket(count: int) -> int:
    return 1 << (count - 1).bit_length()


class RoundShape(Hashable, Protocol):
    """What a round is recorded for."""

    @property
    def rows(self) -> int: ...


class RoundPlan(Protocol):
    """One round."""

    @property
    def shape(self) -> RoundShape: ...
    @property
    def bytes(self) -> int:
        """What its attention is told."""
        ...

    def pack(self, host: NDArray[np.uint8]) -> None:
        """Write what its attention is told."""


class Layout(Protocol):
    """How the rows of a round find the keys and values that they attend to."""

    @property
    def bytes(self) -> int:
        """Of the largest round."""
        ...

    @property
    def usual(self) -> Sequence[RoundShape]:
        """Shapes to record before the first round; empty if there are too many."""
        ...

    @property
    def prompt_rows(self) -> Sequence[int]:
        """Row counts to which pieces of prompts are rounded up; empty if they are not recorded."""
        ...

    def plan(self, rows: int, segments: Sequence[Segment]) -> RoundPlan | None:
        """A round of this many rows, the segments' first; None: it is not recorded, and runs as usual."""
        ...

    def look(self, shape: RoundShape, told: Tensor) -> Look:
        """The attention of a program that reads ``told``, what was packed, on the device."""
        ...


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
        count, rows = len(tokens), plan.shape.rows
        end = 12 * rows + plan.bytes
        ids, turns, where = self._host[: 12 * rows].view(np.int32).reshape(3, rows)
        ids[:count], ids[count:] = tokens, tokens[-1]
        turns[:count], turns[count:] = positions, positions[-1]
        where[:count], where[count:] = slots, range(spare, spare + rows - count)
        plan.pack(self._host[12 * rows : end])
        self._device[:end].copy_(self._pinned[:end], non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))

    def unpack(self, shape: RoundShape) -> Sent:
        numbers = self._device[: 12 * shape.rows].view(torch.int32).long()
        tokens, positions, slots = numbers.view(3, shape.rows).unbind()
        return Sent(tokens, positions, slots, self._device[12 * shape.rows :])
