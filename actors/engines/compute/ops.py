"""The operations that a layer is made of, and the rows that they work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from actors.engines.compute.states import LayerMemory, Told
from actors.engines.decoder.layout import Affine, ExpertWeights, LayerWeights, RecurrentWeights
from actors.engines.decoder.spec import Attention, Experts, Recurrent, Rotation
from actors.engines.weights.matrix import Matrix

# A product before the parts of its inner dimension are added up: (splits, rows, outputs). Whatever reads it next adds
# them up on the way.
Parts = Tensor


class RowTurns(NamedTuple):
    """The rotation of each row."""

    pairs: Tensor  # complex64 (rows, pairs): factor of each pair of neighbouring dimensions of a head
    stretch: Tensor | None = None  # float32 (rows,): factor of whole queries


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


class Walk(Protocol):
    """The recurrent states of the texts of a forward."""

    def mix(self, number: int, layer: LayerWeights, made: Tensor) -> Tensor:
        """Run recurrent layer ``number``: ``(rows, inner)`` from what its input matrix makes of the rows."""
        ...


@dataclass(frozen=True, slots=True)
class Steps:
    """What rows do to the states of a recurrent layer. float32."""

    queries: Tensor  # (rows, groups * keys)
    values: Tensor  # (rows, heads * values)
    records: Tensor  # what the rows put in, see :func:`actors.engines.compute.states.record_parts`
    logarithms: Tensor | None = None  # (heads, keys, values): of decays, by rate, where records have none


@dataclass(slots=True)
class BatchRows:
    """The rows of one forward."""

    ids: Tensor  # int64 (rows,)
    positions: Tensor  # int64 (rows,): each in its text
    pool: LayerKeys
    slots: Tensor  # int64 (rows,) of the pool: where each row's keys and values go
    sight: SlotSight
    walk: Walk | None = None  # None: no layer is recurrent
    prompt: bool = False  # a piece of a prompt: its bits may depend on the number of its rows
    _turns: dict[Rotation, RowTurns] = field(default_factory=dict)  # made once for all layers that turn alike

    def turns(self, rotation: Rotation | None, ops: Ops) -> RowTurns | None:
        """The rotation of each row; None: rows stay as they are."""
        if rotation is None:
            return None
        if rotation not in self._turns:
            self._turns[rotation] = ops.turns(rotation, self.positions)
        return self._turns[rotation]


class Ops(Protocol):
    """One spelling of the operations. ``x`` is the residual stream ``(rows, hidden)``."""

    def embed(self, table: Matrix, ids: Tensor, scale: float) -> Tensor:
        """Rows of a table, times ``scale``: ``(*ids, width)``."""
        ...

    def linear(self, x: Tensor, matrix: Matrix, prompt: bool = False) -> Parts:
        """Multiply rows. ``prompt``: see :class:`BatchRows`."""
        ...

    def logits(self, x: Tensor, head: Matrix) -> Tensor:
        """float32 ``(rows, vocabulary)``."""
        ...

    def room(self, x: Tensor, size: int) -> Any:
        """A second place for rows of ``size`` numbers made of ``x``, in the form that products read; None: none."""
        ...

    def made(self, rows: Tensor, room: Any) -> Tensor:
        """Rows that are in ``room``, too."""
        ...

    def whole(self, parts: Parts) -> Tensor:
        """Add up the parts of a product: ``(rows, outputs)``."""
        ...

    def norm(self, x: Tensor, affine: Affine | None, eps: float = 0.0) -> Tensor:
        """Norm the last dimension; None: leave it. ``eps``: 0 for the model's."""
        ...

    def join(
        self, x: Tensor, parts: Parts, scale: float, behind: Affine | None, then: Affine | None
    ) -> tuple[Tensor, Tensor]:
        """Add a product, normed by ``behind``, times ``scale`` to ``x``, which may change in place. Return the sum, and
        the sum normed by ``then``."""
        ...

    def turns(self, rotation: Rotation, positions: Tensor) -> RowTurns: ...

    def heads(
        self, made: Parts, layer: LayerWeights, turns: RowTurns | None, pool: tuple[Tensor, Tensor], slots: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Norm and rotate queries and keys, and write keys and values into the ``slots`` of the layer's ``pool``.

        Return the queries ``(rows, heads, width)``, and gates ``(rows, heads * width)`` where the layer has them."""
        ...

    def gate(self, seen: Tensor, gates: Tensor, soft: bool) -> Tensor:
        """Multiply by the sigmoid of gates, or by their softplus."""
        ...

    def feed(self, x: Tensor, up: Matrix, activation: str, gated: bool, prompt: bool = False) -> Tensor:
        """The activated inner numbers of an MLP: ``(rows, inner)``."""
        ...

    def convolve(
        self, mixer: Recurrent, weights: RecurrentWeights, rows: Tensor, memory: LayerMemory, told: Told
    ) -> Tensor:
        """``(rows, channels)`` of the convolution over each row's path. The rows, its inputs, go to their places, and
        written slots get the past inputs that precede their states."""
        ...

    def walk(self, mixer: Recurrent, steps: Steps, memory: LayerMemory, told: Told) -> Tensor:
        """Queries' reads of the state after each row: ``(rows, heads, values)``. Records go to their places, and states
        into the slots that are written."""
        ...

    def experts(self, x: Tensor, logits: Tensor, spec: Experts, weights: ExpertWeights, prompt: bool = False) -> Tensor:
        """Add up what each row's experts give, in the order of their numbers: ``(rows, hidden)``. ``logits``: float32
        ``(rows, experts)`` of the router."""
        ...
