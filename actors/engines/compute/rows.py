"""The rows that the operations of a layer work on, and what they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from actors.engines.compute.operands import RowTurns
from actors.engines.decoder.spec import Attention, Rotation

if TYPE_CHECKING:
    from actors.engines.compute.ops_torch import TorchOps
    from actors.engines.compute.recurrence import StateWalk


class LayerKeys(Protocol):
    """The keys and values ``(kv_heads, slots, width)`` of layers, by their places."""

    @property
    def keys(self) -> Sequence[Tensor]: ...
    @property
    def values(self) -> Sequence[Tensor]: ...


class SlotSight(Protocol):
    """The slots of the pool that each row of a forward sees."""

    def __call__(self, place: int, attention: Attention, queries: Tensor, sinks: Tensor | None) -> Tensor:
        """Attend to layer ``place`` of the pool: ``(rows, heads * width)`` from queries ``(rows, heads, width)``."""
        ...


@dataclass(slots=True)
class BatchRows:
    """The rows of one forward."""

    ids: Tensor  # int64 (rows,)
    positions: Tensor  # int64 (rows,): each in its text
    pool: LayerKeys
    slots: Tensor  # int64 (rows,) of the pool: where each row's keys and values go
    sight: SlotSight
    walk: StateWalk | None = None  # None: no layer is recurrent
    prompt: bool = False  # a piece of a prompt: its bits may depend on the number of its rows
    _turns: dict[Rotation, RowTurns] = field(default_factory=dict)  # made once for all layers that turn alike

    def turns(self, rotation: Rotation | None, ops: TorchOps) -> RowTurns | None:
        """The rotation of each row; None: rows stay as they are."""
        if rotation is None:
            return None
        if rotation not in self._turns:
            self._turns[rotation] = ops.turns(rotation, self.positions)
        return self._turns[rotation]
