"""The fused decoder on a CPU where numba is: a round's forward is one call of compiled code.

What torch does between the products of one row's forward takes longer than reading the weights of a small model: some
forty operations a layer, most of them on a few hundred numbers. With our own kernels between products, each called from
Python, a third of a small target's forward was still Python. Nor does torch lay the call out: behind a forward that has
read more than the caches hold, an operation that takes 2 µs in a loop takes 10 to 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.weights import Shape, Weights
from actors.engines.engine import Choice, Picks
from actors.engines.flat_batch import FlatBatch
from actors.engines.weights.huge_pages import HugePages
from actors.engines.weights.layers import Matrix
from actors.engines.weights.panels import Panels
from actors.engines.weights.twelve_bits import waits_for_memory

Array = NDArray[np.float32]
_NONE: Array = np.empty(0, np.float32)


class CompiledBody:
    """From tokens to logits over a pool. The bits of a row depend on what it sees alone."""

    def __init__(
        self, weights: Weights, pool: KVPool, kernels: ModuleType, team: Any, int8: bool, vocabulary: int
    ) -> None:
        """``team``: the :class:`actors.engines.decoder.cpu.team.Team` that computes. ``int8``: see
        :class:`Panels`. ``vocabulary``: the head's first so many rows are candidates for the likeliest."""
        self.shape: Shape = weights.shape
        self.pool = pool
        self._kernels, self._team = kernels, team
        self._embedding = weights.embedding.to(pool.whole.dtype).contiguous()
        self._kept: list[object] = []  # what stands in the layers by address
        self._jobs: NDArray[Any] = np.empty(4 * len(weights.layers) + 1, dtype=kernels.JOB)
        self._layers: NDArray[Any] = np.zeros(len(weights.layers) + 1, dtype=kernels.LAYER)

        pairs = weights.head.weight.dtype == torch.bfloat16
        pages, twelve = HugePages(), waits_for_memory(weights.count(), pairs)

        def product(place: int, matrix: Matrix, behind: bool) -> float:
            panels = Panels(matrix, kernels, team, behind, int8, pages, twelve)
            self._kept.append(panels)
            self._jobs[place] = panels.job[0]
            return panels.scale

        def address(tensor: Tensor) -> int:
            whole = tensor.float().contiguous()
            self._kept.append(whole)
            return whole.data_ptr()

        for index, layer in enumerate(weights.layers):
            place, mine = 4 * index, self._layers[index]
            mine["inputs"] = address(layer.input_norm * product(place, layer.qkv, False))
            mine["heads"] = 0 if layer.query_norm is None else address(layer.query_norm)
            mine["out_scale"] = product(place + 1, layer.out, True)
            mine["inner"] = address(layer.inner_norm * product(place + 2, layer.gate_up, False))
            mine["down_scale"] = product(place + 3, layer.down, True)
            mine["keys"], mine["values"] = pool.keys[index].data_ptr(), pool.values[index].data_ptr()
        self._layers[-1]["inputs"] = address(weights.norm * product(-1, weights.head, False))
        for index in range(len(self._jobs)):  # behind the head the next forward
            self._jobs[index]["then"] = self._jobs.ctypes.data + (index + 1) % len(self._jobs) * self._jobs.itemsize
        self._attention: NDArray[Any] = np.zeros(1, dtype=kernels.JOB)
        self._attention["half"] = pool.whole.dtype == torch.bfloat16
        shape = self.shape
        self._model: NDArray[Any] = np.zeros(1, dtype=kernels.BODY)
        self._tell(depth=shape.layers, hidden=shape.hidden, heads=shape.heads, kv_heads=shape.kv_heads)
        self._tell(width=shape.width, inner=shape.inner, eps=shape.eps, pool=pool.slots, vocabulary=vocabulary)
        self._tell(layers=self._layers.ctypes.data, jobs=self._jobs.ctypes.data, embedding=self._embedding.data_ptr())
        if weights.covered is not None:
            self._kept.append(ids := weights.covered.ids.astype(np.int32))
            self._tell(tokens=ids.ctypes.data)
        self._tell(attention=self._attention.ctypes.data, current=team.job.ctypes.data, state=team.state.ctypes.data)
        self._rows, self._wide = self._embedding.shape[0], int(self._jobs[-1]["apart"])
        self._numbers = 2 * shape.hidden + shape.heads * shape.width + shape.inner + int(self._jobs["apart"][:3].sum())
        self._turns: Tensor | None = None
        self._angles: Array = np.empty((0, shape.width), np.float32)
        self._room, self._scores, self._looks = _NONE, np.empty((0, 0), np.float32), np.empty(0, np.int64)

    def _tell(self, **fields: float) -> None:
        for name, value in fields.items():
            self._model[name] = value

    def run(
        self, batch: FlatBatch, select: Sequence[int] | None, turns: Tensor, choices: list[Choice], most: int = 0
    ) -> Picks:
        """See :meth:`actors.engines.engine.Engine.pick`; without ``choices`` the logits are all that it makes.
        ``select`` ascends; ``turns``: see :meth:`Weights.turns`, up to the last position at least."""
        keep: Sequence[int] = range(len(batch.tokens)) if select is None else select
        picks = Picks(
            np.empty((len(keep), self._wide), np.float32),
            np.empty((len(choices), max(1, most)), np.int64),
            np.empty((len(choices), most), np.float32),
            self.shape.vocabulary,
        )
        told = (
            *self._laid_out(batch, keep, turns),
            *(np.array(choices, dtype=self._kernels.CHOICE), picks.host, picks.ids, picks.probabilities),
        )
        self._kernels.run_layers(*told)
        return picks

    def _laid_out(
        self, batch: FlatBatch, keep: Sequence[int], turns: Tensor
    ) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]:
        """What compiled code is told of a forward, once there is room for it. Few operations and no torch: behind the
        last forward each kind takes 10 to 30 us."""
        tokens, segments = batch.tokens, batch.segments
        if min(tokens) < 0 or max(tokens) >= self._rows:  # compiled code reads whatever lies there
            raise IndexError(f"tokens are numbers from 0 to {self._rows - 1}")
        if turns is not self._turns:
            self._turns, self._angles = turns, torch.view_as_real(turns).numpy().reshape(len(turns), -1)
            self._tell(turns=self._angles.ctypes.data, reach=len(turns))
        most = span = 0
        looked: list[int] = []
        for segment in segments:
            most, span = max(most, segment.rows), max(span, segment.span)
            looked += (segment.rows, segment.base, segment.span)
        span = -(-span // self._kernels.LANES) * self._kernels.LANES
        self._make_room(len(tokens), most, span, len(segments))
        head = (len(tokens), len(keep), len(segments), span)
        numbers = np.array([*head, *tokens, *batch.positions, *batch.slots, *keep, *looked], dtype=np.int64)
        if len(segments) == 1:
            return self._model, numbers, segments[0].visible
        seen = np.concatenate([s.visible.reshape(-1) for s in segments]) if segments else np.empty(1, np.bool_)
        return self._model, numbers, seen.reshape(1, -1)

    def _make_room(self, rows: int, most: int, span: int, segments: int) -> None:
        """``most``: rows of a segment at most."""
        shape = self.shape
        if len(self._room) < rows * self._numbers:
            self._room = np.empty(rows * self._numbers, np.float32)
            self._tell(room=self._room.ctypes.data)
            widest = max(shape.hidden, shape.heads * shape.width, shape.inner)
            self._team.make_room(rows * self._kernels.room_of(widest))
        if len(self._looks) < rows * (span + 2) + segments:
            self._looks = np.empty(rows * (span + 2) + segments, np.int64)
            self._tell(looks=self._looks.ctypes.data)
        own = most * shape.heads // shape.kv_heads * (span + 2 * shape.width) + self._kernels.LANES * shape.width
        if self._scores.shape[1] < own:
            self._scores = self._team.buffers(own)
            self._tell(scores=self._scores.ctypes.data, own_scores=self._scores.shape[1])
