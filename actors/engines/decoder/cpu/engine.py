"""The fused decoder on a CPU where numba is: a round's forward is one call of compiled code.

What torch does between the products of one row's forward takes longer than reading the weights of a small model: some
forty operations a layer, most of them on a few hundred numbers. With our own kernels between products, each called from
Python, a third of a small target's forward was still Python. Nor does torch lay the call out: behind a forward that has
read more than the caches hold, an operation that takes 2 µs in a loop takes 10 to 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.configuration import compiled_spec
from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.laid_out import LaidOut
from actors.engines.decoder.cpu.records import BODY, CENTRED, CHOICE, JOB, LANES, LOOKS, RMS, TOGETHER
from actors.engines.decoder.cpu.rings import Rings, kv_shapes, ring_slots
from actors.engines.decoder.cpu.streams import FusedRecurrence
from actors.engines.decoder.cpu.trunk import CompiledTrunk
from actors.engines.decoder.layout import DecoderWeights, lay_out, table
from actors.engines.decoder.spec import Attention, DecoderSpec, Rotation
from actors.engines.engine import Choice, Picks, Trunk
from actors.engines.flat_batch import FlatBatch
from actors.engines.measuring.bandwidth import memory_bandwidth
from actors.engines.sampling.sampler import LEAST
from actors.engines.weights.draft_vocabulary import draft_vocabulary
from actors.engines.weights.source import source_of
from actors.models import ModelInfo
from protocols.messages import Reading

Array = NDArray[np.float32]
SCORES_APART = 32  # numbers between two threads' scores: two lines of the cache, as processors fetch them in pairs
TURNS = 2048  # positions of the first tables of rotations; they double as texts grow


def _buffers(threads: int, numbers: int) -> Array:
    """A buffer for each thread, ``(threads, at least numbers)``, that begins with a line of the cache: vectors across
    two lines take longer."""
    apart = -(-numbers // LANES) * LANES + SCORES_APART
    whole = np.empty(threads * apart + LANES, np.float32)
    first = -(whole.ctypes.data // whole.itemsize) % LANES
    return whole[first : first + threads * apart].reshape(threads, apart)


class _Rooms:
    """Memory that grows with the largest forward."""

    def __init__(self, laid: LaidOut, spec: DecoderSpec, tile: int) -> None:
        """``tile``: numbers of a recurrent layer's tile, or 0."""
        self._numbers, self._tile = int(laid.sizes.sum()), tile  # numbers of a row between operations
        self.widest = max(spec.hidden, *spec.inner, int(laid.sizes[1]))
        self._heads = {(one.heads, one.kv_heads, one.width) for one in spec.attentions}
        self._sights = 2 if any(one.window for one in spec.attentions) else 1
        self._between: Array = np.empty(0, np.float32)
        self._scores: Array = np.empty((0, 0), np.float32)
        self._looks: NDArray[np.int64] = np.empty(0, np.int64)

    def fit(self, rows: int, most: int, span: int, team: Any) -> dict[str, int]:
        """Addresses for compiled code. ``most``: rows of a segment at most."""
        told: dict[str, int] = {}
        if len(self._between) < rows * self._numbers:
            self._between = np.empty(rows * self._numbers, np.float32)
            told["room"] = self._between.ctypes.data
            team.make_room(rows * self.widest)
        looks = rows * (self._sights * (span + LOOKS) + 1)
        if len(self._looks) < looks:
            self._looks = np.empty(looks, np.int64)
            told["looks"] = self._looks.ctypes.data
        few = min(most, TOGETHER)
        own = max(
            0,
            (most + 1) * self._tile,
            *(few * heads // kv * (span + 2 * width) + LANES * width for heads, kv, width in self._heads),
        )
        if self._scores.shape[1] < own:
            self._scores = _buffers(team.size, own)
            told |= {"scores": self._scores.ctypes.data, "own_scores": self._scores.shape[1]}
        return told


@dataclass(slots=True)
class _Turns:
    """Tables of rotations, which grow with the texts."""

    layers: dict[Rotation, list[int]] = field(default_factory=dict)  # layers that turn by each
    attention: dict[Rotation, Attention] = field(default_factory=dict)  # attention by rotation
    tables: list[Array] = field(default_factory=list)
    reach: int = 0  # positions


class _Sizes(NamedTuple):
    weights: int  # numbers in all
    tokens: int  # that have an embedding
    vocabulary: int  # tokens that have a logit
    candidates: int  # those that the tokenizer knows
    wide: int  # numbers of a row of logits, with room for the kernels' last vector


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
        source, kernels = source_of(model), compiled_kernels()
        self.info, self.device, self.dtype = info, source.device, source.dtype
        spec = compiled_spec(model.config, self.device, self.dtype)
        assert spec is not None and kernels is not None
        spec = spec.in_context(info.max_context)
        weights = lay_out(spec, source, draft_vocabulary(model))
        self.draft_vocabulary = weights.covered
        length = ring_slots(spec, info.max_context) if rings else 0
        self.pool = KVPool(kv_shapes(spec, length > 0)[0], slots, self.dtype, self.device)
        self.team, self._kernels = team or own_team(), kernels
        self._rings = Rings(spec, length, rings, self.dtype) if length else None
        self._laid = laid = LaidOut(weights, self.team, int8)
        vocabulary, rows = weights.vocabulary, weights.embedding.weight.shape[0]
        candidates, wide = min(info.vocab_size, vocabulary), int(laid.jobs[-1]["apart"])
        self._sizes = _Sizes(weights.count(), rows, vocabulary, candidates, wide)
        self._trunk, self._turns = CompiledTrunk(weights, self.team, laid.head), _Turns()
        self._streams = FusedRecurrence(laid.mixers, laid.width) if laid.mixers else None
        self._rooms = _Rooms(laid, spec, 0 if self._streams is None else self._streams.tile)
        self._model: NDArray[Any] = np.zeros(1, dtype=BODY)
        self._tell_pools(weights)
        self._tell_model(weights)
        weights.spend()

    def _tell_pools(self, weights: DecoderWeights) -> None:
        """Say where each layer's keys and values are, and by which rotation it turns."""
        pool, rings, laid = self.pool, self._rings, self._laid
        whole = iter(zip(pool.keys, pool.values, strict=True))
        ringed = whole if rings is None else iter(zip(rings.pool.keys, rings.pool.values, strict=True))
        for index, layer in enumerate(weights.layers):
            mine, attention = laid.layers[index], layer.spec.attention
            if attention is None:
                continue
            if attention.shares is None:
                mine["keys"], mine["values"] = (part.data_ptr() for part in next(ringed if attention.window else whole))
            else:
                mine["keys"], mine["values"] = (laid.layers[attention.shares][name] for name in ("keys", "values"))
            if attention.rotation is not None:
                self._turns.layers.setdefault(attention.rotation, []).append(index)
                self._turns.attention[attention.rotation] = attention
        own = (pool.slots, 0) if rings is None else (rings.pool.slots, rings.length)
        self._tell(pool=pool.slots, windowed=own[0], ring=own[1])

    def _tell_model(self, weights: DecoderWeights) -> None:
        """Say what else of the model compiled code reads."""
        spec, laid, team = weights.spec, self._laid, self.team
        half, embedding = laid.table(weights.embedding, weights.head.blocks is weights.embedding.blocks)
        self._tell(depth=len(spec.layers), hidden=spec.hidden, inputs=laid.inputs)
        self._tell(eps=spec.norm.eps, vocabulary=self._sizes.candidates)
        self._tell(layers=laid.layers.ctypes.data, jobs=laid.jobs.ctypes.data, half=half, embedding=embedding)
        self._tell(embedding_scale=spec.embedding_scale, logit_cap=spec.logit_cap)
        if weights.positions is not None and spec.positions is not None:
            place_half, places = laid.table(weights.positions, False)
            last = len(weights.positions.weight) - 1
            self._tell(positions=places, positions_half=place_half, positions_last=last)
            self._tell(positions_first=spec.positions.first)
        if weights.embedded_norm is not None:
            laid.norm(self._model[0]["embedded"], weights.embedded_norm)
        self._tell(norm=CENTRED if spec.norm.centred else RMS, sizes=laid.sizes.ctypes.data)
        for windowed in (attention for attention in spec.attentions if attention.window):
            self._tell(window=windowed.window, chunked=windowed.chunked)
        if weights.covered is not None:
            self._tell(tokens=laid.keep(weights.covered.ids.astype(np.int32)))
        attention = np.zeros(1, dtype=JOB)
        attention["half"] = self.dtype == torch.bfloat16
        self._tell(attention=laid.keep(attention), current=team.job.ctypes.data, state=team.state.ctypes.data)

    def reading(self) -> Reading:
        """What a token reads."""
        size, beside = self._laid.read_bytes, 0 if self.recurrence is None else self.recurrence.stream_bytes
        bandwidth = memory_bandwidth(self.team.own)
        return Reading(size, 8 * size / self._sizes.weights, bandwidth, self.pool.slot_bytes, beside)

    @property
    def recurrence(self) -> FusedRecurrence | Rings | None:
        return self._streams or self._rings

    @property
    def has_spare_cpus(self) -> bool:
        return bool(self.team.size > self.team.own)

    def use_spare_cpus(self, used: bool) -> None:
        self.team.use_spare_cpus(used)

    def trunk(self) -> Trunk:
        return self._trunk.trunk()

    def tap(self, layers: Sequence[int]) -> None:
        self._tell(**self._trunk.tap(layers))

    @property
    def tapped(self) -> Tensor:
        return torch.from_numpy(self._trunk.states)

    def forward(self, batch: FlatBatch, select: Sequence[int] | None = None) -> Tensor:
        return self._run(batch, select, []).logits

    def pick(
        self, batch: FlatBatch, select: Sequence[int] | None, choices: list[Choice], most: int = 0
    ) -> Picks | None:
        return None if self._sizes.candidates < LEAST else self._run(batch, select, choices, most)

    def _turn_up_to(self, position: int) -> None:
        """Lengthen the tables of rotations if they end before ``position``."""
        turns = self._turns
        if position < turns.reach:
            return
        turns.reach, turns.tables = max(TURNS, 1 << position.bit_length()), []
        for rotation, layers in turns.layers.items():
            for name in ("turns", "query_turns"):
                if name == "turns" or rotation.stretch is not None:
                    pairs = torch.view_as_real(table(turns.attention[rotation], turns.reach, name == "query_turns"))
                    turns.tables.append(pairs.numpy().reshape(turns.reach, -1))
                self._laid.layers[name][layers] = turns.tables[-1].ctypes.data
        self._tell(reach=turns.reach)

    def _tell(self, **fields: float) -> None:
        for name, value in fields.items():
            self._model[name] = value

    def _run(self, batch: FlatBatch, select: Sequence[int] | None, choices: list[Choice], most: int = 0) -> Picks:
        """:meth:`pick`; without ``choices`` it makes logits alone. ``select`` ascends."""
        keep: Sequence[int] = range(len(batch.tokens)) if select is None else select
        picks = Picks(
            np.empty((len(keep), self._sizes.wide), np.float32),
            np.empty((len(choices), max(1, most)), np.int64),
            np.empty((len(choices), most), np.float32),
            self._sizes.vocabulary,
        )
        if self._trunk.count:
            self._tell(tapped=self._trunk.room(len(batch.tokens)))
        told = (
            *self._laid_out(batch, keep),
            np.array(choices, dtype=CHOICE),
            (picks.host, picks.ids, picks.probabilities),
        )
        if self._streams is not None:
            self._tell(walk=self._streams.lay_out(batch.segments))
            self.team.make_room(self._streams.rows * self._rooms.widest)
        self._kernels.run_layers(*told)
        if self._streams is not None:
            self._streams.computed()
        return picks

    def _laid_out(
        self, batch: FlatBatch, keep: Sequence[int]
    ) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]:
        """Numbers of a forward for compiled code; makes room for it first. Few operations and no torch: right after a
        forward each kind takes 10 to 30 us."""
        tokens, segments = batch.tokens, batch.segments
        if min(tokens) < 0 or max(tokens) >= self._sizes.tokens:  # compiled code reads whatever lies there
            raise IndexError(f"tokens are numbers from 0 to {self._sizes.tokens - 1}")
        self._turn_up_to(max(batch.positions))
        most = span = 0
        looked: list[int] = []
        for segment in segments:
            most, span = max(most, segment.rows), max(span, segment.span)
            looked += (
                segment.rows,
                segment.base,
                segment.span,
                0 if self._rings is None else self._rings.begin(segment),
            )
        span = -(-span // LANES) * LANES
        self._tell(**self._rooms.fit(len(tokens), most, span, self.team))
        head = (len(tokens), len(keep), len(segments), span)
        numbers = np.array([*head, *tokens, *batch.positions, *batch.slots, *keep, *looked], dtype=np.int64)
        if len(segments) == 1:
            return self._model, numbers, segments[0].visible
        seen = np.concatenate([s.visible.reshape(-1) for s in segments]) if segments else np.empty(1, np.bool_)
        return self._model, numbers, seen.reshape(1, -1)
