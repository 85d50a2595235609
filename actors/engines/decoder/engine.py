"""The decoder by hand: the same :class:`actors.engines.engine.Engine`, in a fraction of transformers' time.

With models that a CPU runs in a millisecond most of a transformers forward is Python and dispatch. Here a layer is some
twenty operations on fused matrices, and the matrices are read in half the bytes where that loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.configuration import COMPILED, compiles, spec_of, supports
from actors.engines.decoder.cpu.body import CompiledBody
from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.rings import Rings, kv_shapes, ring_slots
from actors.engines.decoder.cpu.streams import FusedRecurrence
from actors.engines.decoder.gpu.body import gpu_body
from actors.engines.decoder.gpu.graphs import CudaRecorder, Graphs, Recorder
from actors.engines.decoder.gpu.in_place import MAX_PARTS
from actors.engines.decoder.gpu.round_buffer import MAX_ROWS
from actors.engines.decoder.layout import DecoderWeights, lay_out
from actors.engines.decoder.torch.body import TorchBody
from actors.engines.decoder.torch.padded_batch import PaddedBatch
from actors.engines.engine import Choice, Picks, Trunk
from actors.engines.flat_batch import FlatBatch
from actors.engines.measuring.bandwidth import memory_bandwidth
from actors.engines.sampling.sampler import LEAST
from actors.engines.weights.draft_vocabulary import draft_vocabulary
from actors.engines.weights.layers import rows_for
from actors.engines.weights.source import source_of
from actors.models import ModelInfo
from protocols.errors import ModelError
from protocols.messages import Reading

WORKSPACE = 128 << 20  # of rounds on a GPU: cuBLAS's own (32 MB on Hopper), and activations of 256 rows
TURNS = 2048  # positions of the first rotation table; it doubles as texts grow


class LlamaEngine:
    """See :class:`actors.engines.engine.Engine`. One forward at a time; not thread-safe."""

    text_matters = False

    def __init__(
        self,
        model: nn.Module,
        info: ModelInfo,
        slots: int,
        int8: bool = False,
        exact: bool = True,
        recorder: Recorder | None = None,
        spare_cpus: Sequence[int] = (),
        beside: LlamaEngine | None = None,
        rings: int = 0,
    ) -> None:
        """Takes the weights out of a ``transformers`` model of a configuration that :func:`supports` accepts; the
        model is spent. Device and dtype are the model's.

        ``exact``: the bits of a row depend neither on the rows beside it (up to 64) nor on the span, and the kernels
        are the same at every start: for a target. Otherwise the quickest are used: for a draft. ``int8``: matrices'
        weights, on a CPU; a target's only where layers are compiled. ``recorder``: how rounds of static shapes are
        recorded; None: as CUDA graphs on a GPU, and not at all elsewhere. ``spare_cpus``: see :meth:`use_spare_cpus`.
        ``beside``: an engine that the same thread calls, in turns: its threads compute for this one as well. ``rings``:
        texts whose layers with windows keep no more than those, where layers are compiled; 0: they keep all.
        """
        spec, source = spec_of(model.config), source_of(model)
        if spec is None or not supports(model.config, source.device, source.dtype):
            raise ModelError(f"the fused decoder does not know model {info.model_id}; use TransformersEngine for it")
        if int8 and exact and not compiles(spec):
            raise ModelError("an int8 target needs compiled layers; choose float32 or bfloat16")
        self.info = info
        self.device, self.dtype = source.device, source.dtype
        weights = lay_out(spec, source, draft_vocabulary(model))
        if recorder is None and self.device.type == "cuda":
            recorder = CudaRecorder(self.device)
        spare = 0 if recorder is None else MAX_ROWS
        on_cpu = recorder is None and self.device.type == "cpu" and self.dtype in COMPILED
        compiled = on_cpu and compiled_kernels() is not None and compiles(spec)
        length = ring_slots(spec, info.max_context) if compiled and rings else 0
        self.pool = KVPool(kv_shapes(spec, length > 0)[0], slots, self.dtype, self.device, spare)
        self._weights = weights
        self.draft_vocabulary = weights.covered
        self._candidates = min(info.vocab_size, weights.shape.vocabulary)
        # graphs hold on to the table, and a new one would cost them all
        self._reach = TURNS if recorder is None else max(TURNS, min(slots, info.max_context))
        self._turns = weights.turns(self._reach)
        self._pads = exact and self.device.type == "cpu"
        self._body: TorchBody | CompiledBody
        self.graphs: Graphs | None = None
        self._team: Any = None if beside is None else beside._team
        self._spare_cpus = spare_cpus
        if compiled:
            self._body = self._compiled(weights, int8, Rings(spec, length, rings, self.dtype) if length else None)
        else:
            if self.device.type == "cuda":
                self._body = gpu_body(weights, self.pool, self.dtype, exact)
            else:
                self._body = TorchBody(weights, self.pool, self.dtype, int8, exact)
            if recorder is not None:
                self.graphs = Graphs(self._body, recorder, self._candidates, self._pads)
                self.graphs.record_ahead(self._turns)
        if exact:
            self.info = replace(info, reading=self._reading(weights.count()))
        weights.spend()

    def _reading(self, count: int) -> Reading:
        """Of a token, by the weights that its forward reads."""
        if isinstance(self._body, CompiledBody):
            size = self._body.read_bytes
            bandwidth = memory_bandwidth(self._team.size - len(self._spare_cpus))
        else:
            size, bandwidth = count * self.dtype.itemsize, 0.0
        beside = 0 if self.recurrence is None else self.recurrence.stream_bytes
        return Reading(size, 8 * size / count, bandwidth, self.pool.slot_bytes, beside)

    def _compiled(self, weights: DecoderWeights, int8: bool, rings: Rings | None) -> CompiledBody:
        kernels = compiled_kernels()
        assert kernels is not None
        self._pads = False
        threads = torch.get_num_threads()
        self._team = self._team or kernels.Team(threads - 1, self._spare_cpus)
        if threads > 1:
            torch.set_num_threads(1)  # the threads of its pool would want the same cores
        return CompiledBody(weights, self.pool, rings, self._team, int8, self._candidates)

    @property
    def recurrence(self) -> FusedRecurrence | Rings | None:
        return (self._body.streams or self._body.rings) if isinstance(self._body, CompiledBody) else None

    @property
    def has_spare_cpus(self) -> bool:
        return self._team is not None and bool(self._spare_cpus)

    def use_spare_cpus(self, used: bool) -> None:
        self._team.use_spare_cpus(used)

    @property
    def best(self) -> Tensor | None:
        return None if self.graphs is None else self.graphs.best

    def trunk(self) -> Trunk:
        if isinstance(self._body, CompiledBody):
            return self._body.trunk.trunk()
        return self._body.trunk(self._weights.shape)

    def tap(self, layers: Sequence[int]) -> None:
        if isinstance(self._body, CompiledBody):
            self._body.tap(layers)
            return
        self._body.taps = tuple(layers)
        if self.graphs is not None:
            self.graphs.tap(self._turns)

    @property
    def tapped(self) -> Tensor:
        if isinstance(self._body, CompiledBody):
            return torch.from_numpy(self._body.trunk.states)
        recorded = None if self.graphs is None else self.graphs.tapped
        return self._body.tapped() if recorded is None else recorded

    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> Tensor:
        if isinstance(self._body, CompiledBody):
            return self._body.run(batch, select, []).logits
        self._turn_up_to(max(batch.positions))
        if self.graphs is not None:
            logits = self.graphs.forward(batch, select, self._turns)
            if logits is not None:
                return logits
        tokens, positions, count = batch.tokens, batch.positions, len(batch.tokens)
        extra = rows_for(count) - count if self._pads else 0
        if extra:
            tokens, positions = [*tokens, *[tokens[-1]] * extra], [*positions, *[positions[-1]] * extra]
        turns = self._turns.index_select(0, torch.tensor(positions, dtype=torch.int64, device=self.device))
        wanted = count if select is None else len(select)
        keep = None
        if select is not None:
            keep = [*select, *[select[-1]] * (rows_for(wanted) - wanted if self._pads else 0)]
        return self._body.run(PaddedBatch(tokens, turns, batch.slots, batch.segments, keep))[:wanted]

    def pick(
        self, batch: FlatBatch, select: Sequence[int] | None, choices: list[Choice], most: int = 0
    ) -> Picks | None:
        if not isinstance(self._body, CompiledBody) or self._candidates < LEAST:
            return None
        return self._body.run(batch, select, choices, most)

    def _turn_up_to(self, position: int) -> None:
        """The table of rotations is long enough."""
        if position >= self._reach:
            self._reach = 1 << position.bit_length()
            self._turns = self._weights.turns(self._reach)


def recorded_bytes(config: Any) -> int:
    """What recorded rounds take on a GPU beside the KV pool, by a configuration that :func:`supports` accepts."""
    spec = spec_of(config)
    assert spec is not None
    seen = MAX_PARTS * spec.attention.heads * (spec.attention.width + 2) * torch.float32.itemsize
    logits: int = MAX_ROWS * spec.vocabulary * torch.float32.itemsize
    return seen + 3 * logits + WORKSPACE  # as the head computes them, as they are kept, and as they are handed on
