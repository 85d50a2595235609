"""What the operations of a layer hand to one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

# A product before the parts of its inner dimension are added up: (splits, rows, outputs). Whatever reads it next adds
# them up on the way.
Parts = Tensor


class RowTurns(NamedTuple):
    """The rotation of each row."""

    pairs: Tensor  # complex64 (rows, pairs): factor of each pair of neighbouring dimensions of a head
    stretch: Tensor | None = None  # float32 (rows,): factor of whole queries


@dataclass(frozen=True, slots=True)
class Steps:
    """What rows do to the states of a recurrent layer. float32."""

    queries: Tensor  # (rows, groups * keys)
    values: Tensor  # (rows, heads * values)
    records: Tensor  # what the rows put in, see :func:`actors.engines.compute.states.record_parts`
    logarithms: Tensor | None = None  # (heads, keys, values): of decays, by rate, where records have none
