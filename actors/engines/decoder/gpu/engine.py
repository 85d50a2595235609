"""The decoder by hand on a GPU: Triton's kernels in CUDA graphs, and torch's operations for what no graph holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from actors.engines.cache.pool import KVPool
from actors.engines.compute.ops_triton import gpu_program, recordable, torch_program
from actors.engines.compute.rows import BatchRows
from actors.engines.compute.sight import PoolSight
from actors.engines.compute.states import recurrence_of
from actors.engines.decoder.configuration import described
from actors.engines.decoder.cpu.rings import kv_shapes
from actors.engines.decoder.gpu.graphs import CudaRecorder, Graphs, Recorder
from actors.engines.decoder.gpu.groups import send
from actors.engines.decoder.gpu.in_place import MAX_PARTS, MAX_ROWS, in_place
from actors.engines.decoder.layout import lay_out
from actors.engines.decoder.torch.attention import MAX_ROUND
from actors.engines.engine import Trunk
from actors.engines.flat_batch import WHOLE, FlatBatch
from actors.engines.sampling.sampler import noisy_choice
from actors.engines.weights.draft_vocabulary import draft_vocabulary
from actors.engines.weights.source import source_of
from actors.models import ModelInfo
from protocols.messages import Reading

WORKSPACE = 128 << 20  # memory of rounds: cuBLAS's own (32 MB on Hopper), and activations of 256 rows


class GpuEngine:
    """See :class:`actors.engines.engine.Engine`. One forward at a time; not thread-safe."""

    has_spare_cpus = False

    def __init__(
        self,
        model: nn.Module,
        info: ModelInfo,
        slots: int,
        exact: bool = True,
        recorder: Recorder | None = None,
        plain: bool = False,
    ) -> None:
        """Takes the weights out of a ``transformers`` model that has a description; the model is spent. Device and
        dtype are the model's.

        ``exact``: the bits of a row depend neither on the rows beside it (up to 64) nor on the span: for a target.
        ``recorder``: how rounds are recorded; None: as CUDA graphs. ``plain``: torch computes, launch by launch.
        """
        spec, source = described(model.config).in_context(info.max_context), source_of(model)
        self.info, self.device, self.dtype = info, source.device, source.dtype
        weights = send(lay_out(spec, source, draft_vocabulary(model)), self.device)
        self.draft_vocabulary = weights.covered
        self.pool = KVPool(kv_shapes(spec, False)[0], slots, self.dtype, self.device, MAX_ROWS)
        self._reads, self._count = sum(part.nbytes for part in weights.read()), weights.count()
        positions, self._exact = min(slots, info.max_context + MAX_ROUND), exact
        reserved = recorded_bytes(model.config, self.dtype) if self.device.type == "cuda" else 0
        self.recurrence = recurrence_of(spec.recurrent, self.device, reserved)
        make = torch_program if plain else gpu_program
        self._program = make(weights, self.pool, positions, self.recurrence)
        self.graphs: Graphs | None = None
        layout = in_place(spec, self.pool, exact) if not plain and recordable(self._program) else None
        if layout is not None:
            candidates = min(info.vocab_size, weights.vocabulary)
            recorder = recorder or CudaRecorder(self.device)
            self.graphs = Graphs(self._program, recorder, candidates, layout)
            self.graphs.record_ahead()
            noisy_choice(self.device)  # compiled now, not while a stream waits

    def reading(self) -> Reading:
        """What a token reads."""
        return Reading(self._reads, 8 * self._reads / self._count, 0.0, self.pool.slot_bytes)

    def use_spare_cpus(self, used: bool) -> None:
        raise NotImplementedError("it has none")

    @property
    def best(self) -> Tensor | None:
        return None if self.graphs is None else self.graphs.best

    def trunk(self) -> Trunk:
        return self._program.trunk()

    def tap(self, layers: Sequence[int]) -> None:
        self._program.taps = tuple(layers)
        if self.graphs is not None:
            self.graphs.tap()

    @property
    def tapped(self) -> Tensor:
        recorded = None if self.graphs is None else self.graphs.tapped
        return self._program.tapped() if recorded is None else recorded

    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> Tensor:
        logits = None if self.graphs is None else self.graphs.forward(batch, select)
        logits = self._run(batch, select) if logits is None else logits
        if self.recurrence is not None:
            self.recurrence.computed()
        return logits

    @torch.inference_mode()
    def _run(self, batch: FlatBatch, select: Sequence[int] | None) -> Tensor:
        """Launch by launch."""
        if self.device.type == "cpu" and self._exact:
            select = range(len(batch.tokens)) if select is None else select
            batch = batch.padded(-len(batch.tokens) % WHOLE, self.pool.slots)
        told = (batch.tokens, batch.positions, batch.slots)
        ids, positions, slots = (torch.tensor(each, dtype=torch.int64, device=self.device) for each in told)
        walk = None
        if self.recurrence is not None:
            walk = self._program.walk(self.recurrence.index(batch.segments).to(self.device))
        sight = PoolSight(self.pool, batch, self._exact)
        rows = BatchRows(ids, positions, self.pool, slots, sight, walk, batch.segments[0].prompt)
        x = self._program.run_layers(rows)
        return self._program.logits(x if select is None else x[list(select)])

    def pick(self, *forward: object) -> None:
        """See :class:`actors.engines.engine.Engine`: it cannot choose tokens."""


def recorded_bytes(config: Any, dtype: torch.dtype) -> int:
    """What recorded rounds take beside weights and the KV pool."""
    spec = described(config)
    widths = (one.heads * (one.width + 2) for one in spec.attentions)
    seen = MAX_PARTS * max(widths, default=0) * torch.float32.itemsize
    logits = 3 * MAX_ROWS * spec.vocabulary * torch.float32.itemsize  # three copies: as computed, stored, and handed on
    return seen + logits + WORKSPACE
