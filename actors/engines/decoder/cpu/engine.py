"""The decoder by hand on a CPU: compiled layers, the same :class:`actors.engines.engine.Engine` in less time.

With models that a CPU runs in a millisecond most of a transformers forward is Python and dispatch. Here a layer is some
twenty operations on fused matrices, and the matrices are read in half the bytes where that loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.configuration import compiled_spec
from actors.engines.decoder.cpu.body import CompiledBody
from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.rings import Rings, kv_shapes, ring_slots
from actors.engines.decoder.cpu.streams import FusedRecurrence
from actors.engines.decoder.layout import lay_out
from actors.engines.engine import Choice, Picks, Trunk
from actors.engines.flat_batch import FlatBatch
from actors.engines.measuring.bandwidth import memory_bandwidth
from actors.engines.sampling.sampler import LEAST
from actors.engines.weights.draft_vocabulary import draft_vocabulary
from actors.engines.weights.source import source_of
from actors.models import ModelInfo
from protocols.messages import Reading


def own_team(spare_cpus: Sequence[int] = ()) -> Any:
    """A :class:`actors.engines.decoder.cpu.team.Team` of as many threads as torch has, which has one from now on.
    ``spare_cpus``: see :meth:`actors.engines.engine.Engine.use_spare_cpus`."""
    kernels, own = compiled_kernels(), torch.get_num_threads()
    assert kernels is not None
    if own > 1:
        torch.set_num_threads(1)  # the threads of its pool would want the same cores
    return kernels.Team(own - 1, spare_cpus)


class CompiledEngine:
    """See :class:`actors.engines.engine.Engine`. One forward at a time; not thread-safe.

    The bits of a row depend neither on the rows beside it nor on the span, and the kernels are the same at every start.
    """

    best = None

    def __init__(
        self,
        model: nn.Module,
        info: ModelInfo,
        slots: int,
        team: Any = None,
        int8: bool = False,
        rings: int = 0,
    ) -> None:
        """Takes the weights out of a ``transformers`` model that has a :func:`compiled_spec`; the model is spent.

        ``team``: may be another engine's that the same thread calls in turns; None: :func:`own_team`. ``int8``: of
        matrices' weights. ``rings``: texts whose layers with windows keep no more than those; 0: they keep all.
        """
        source = source_of(model)
        self.info, self.device, self.dtype = info, source.device, source.dtype
        spec = compiled_spec(model.config, self.device, self.dtype)
        assert spec is not None
        spec = spec.in_context(info.max_context)
        weights = lay_out(spec, source, draft_vocabulary(model))
        self.draft_vocabulary = weights.covered
        length = ring_slots(spec, info.max_context) if rings else 0
        self.pool = KVPool(kv_shapes(spec, length > 0)[0], slots, self.dtype, self.device)
        self.team = team or own_team()
        self._count, self._candidates = weights.count(), min(info.vocab_size, weights.vocabulary)
        kept = Rings(spec, length, rings, self.dtype) if length else None
        self._body = CompiledBody(weights, self.pool, kept, self.team, int8, self._candidates)
        weights.spend()

    def reading(self) -> Reading:
        """What a token reads."""
        size, beside = self._body.read_bytes, 0 if self.recurrence is None else self.recurrence.stream_bytes
        bandwidth = memory_bandwidth(self.team.own)
        return Reading(size, 8 * size / self._count, bandwidth, self.pool.slot_bytes, beside)

    @property
    def recurrence(self) -> FusedRecurrence | Rings | None:
        return self._body.streams or self._body.rings

    @property
    def has_spare_cpus(self) -> bool:
        return bool(self.team.size > self.team.own)

    def use_spare_cpus(self, used: bool) -> None:
        self.team.use_spare_cpus(used)

    def trunk(self) -> Trunk:
        return self._body.trunk.trunk()

    def tap(self, layers: Sequence[int]) -> None:
        self._body.tap(layers)

    @property
    def tapped(self) -> Tensor:
        return torch.from_numpy(self._body.trunk.states)

    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> Tensor:
        return self._body.run(batch, select, []).logits

    def pick(
        self, batch: FlatBatch, select: Sequence[int] | None, choices: list[Choice], most: int = 0
    ) -> Picks | None:
        return None if self._candidates < LEAST else self._body.run(batch, select, choices, most)
