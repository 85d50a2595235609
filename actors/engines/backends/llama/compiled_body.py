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

from actors.engines.attention import MAX_ROUND
from actors.engines.backends.llama.batch import Batch
from actors.engines.backends.llama.huge_pages import HugePages
from actors.engines.backends.llama.panels import Panels
from actors.engines.backends.llama.weights import Matrix, Shape, Weights
from actors.engines.engine import Segment
from actors.engines.pool import KVPool

Array = NDArray[np.float32]
_NOTHING = np.empty(0, dtype=np.bool_)


class CompiledBody:
    """From tokens to logits over a pool. The bits of a row depend on what it sees alone, up to ``MAX_ROUND`` rows."""

    def __init__(
        self, weights: Weights, pool: KVPool, kernels: ModuleType, team: Any, int8: bool, vocabulary: int
    ) -> None:
        """``team``: the :class:`actors.engines.backends.compiled.team.Team` that computes. ``int8``: see
        :class:`Panels`. ``vocabulary``: ids below it are candidates for the likeliest."""
        self.shape: Shape = weights.shape
        self.pool = pool
        self._kernels, self._team = kernels, team
        self._embedding = weights.embedding.to(pool.whole.dtype).contiguous()
        self._kept: list[object] = []  # what stands in the layers by address
        self._jobs: NDArray[Any] = np.empty(4 * len(weights.layers) + 1, dtype=kernels.JOB)
        self._layers: NDArray[Any] = np.zeros(len(weights.layers) + 1, dtype=kernels.LAYER)

        pages = HugePages()

        def product(place: int, matrix: Matrix, behind: bool) -> float:
            panels = Panels(matrix, kernels, team, behind, int8, pages)
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
        shape = self.shape
        self._sizes = np.array(
            [
                *(shape.hidden, shape.heads, shape.kv_heads, shape.width, shape.inner),
                *(pool.slots, vocabulary, self._embedding.data_ptr()),
            ],
            dtype=np.int64,
        )
        self._attention: NDArray[Any] = np.zeros(1, dtype=kernels.JOB)
        self._attention["half"] = pool.whole.dtype == torch.bfloat16
        self._wide = int(self._jobs[-1]["apart"])
        self._row = 2 * shape.hidden + shape.heads * shape.width + shape.inner + int(self._jobs["apart"][:3].sum())
        self._room: Array = np.empty(0, np.float32)
        self._turns: Array = np.empty((0, shape.width), np.float32)
        self.best: NDArray[np.int64] | None = None  # the likeliest id of each row of the last forward

    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
        select: Sequence[int] | None,
        turns: Tensor,
    ) -> Tensor:
        """float32 logits of the rows ``select``, in ascending order. ``turns``: see :meth:`Weights.turns`, up to the
        last position at least."""
        rows, shape, size = len(tokens), self.shape, self._embedding.shape[0]
        if min(tokens) < 0 or max(tokens) >= size:  # compiled code reads whatever lies there
            raise IndexError(f"tokens are numbers from 0 to {size - 1}")
        prompt = any(segment.rows > MAX_ROUND for segment in segments)  # the library's attention is quicker
        looked = () if prompt else segments
        if len(self._turns) != len(turns):
            self._turns = torch.view_as_real(turns).numpy().reshape(len(turns), -1)
        keep = np.arange(rows) if select is None else np.array(select, dtype=np.int64)
        logits: Array = np.empty((len(keep), self._wide), np.float32)
        self.best = np.empty(len(keep), np.int64)
        most, span = max((s.rows for s in looked), default=0), max((s.span for s in looked), default=0)
        span = -(-span // self._kernels.LANES) * self._kernels.LANES
        fixed = (
            *(self._layers, self._jobs, self._sizes, shape.eps, self._turns),
            *(np.array([tokens, positions, slots], dtype=np.int64), keep),
            np.array([(s.rows, s.base, s.span) for s in looked], dtype=np.int64).reshape(-1, 3),
            np.concatenate([s.visible.reshape(-1) for s in looked]) if looked else _NOTHING,
            *(self._room_for(rows), np.empty(rows * (span + 1) + len(looked), np.int64)),
            np.empty((self._team.size, most * shape.heads // shape.kv_heads * span), np.float32),
            *(logits, self.best, self._attention, self._team.job, self._team.state),
        )
        if prompt:
            where = torch.tensor(positions, dtype=torch.int64)
            self._run_prompt(Batch(tokens, turns[where], slots, segments, None), fixed)
        else:
            self._kernels.run_layers(*fixed, 0, 2 * self.shape.layers)
        return torch.from_numpy(logits if self._wide == shape.vocabulary else logits[:, : shape.vocabulary])

    def _run_prompt(self, batch: Batch, fixed: tuple[Any, ...]) -> None:
        """With torch between the halves of each layer."""
        shape, run, rows = self.shape, self._kernels.run_layers, len(batch.tokens)
        look = batch.attention(self.pool, shape)
        start, wide, apart = rows * shape.hidden, shape.heads * shape.width, int(self._jobs[0]["apart"])
        seen = torch.from_numpy(self._room[start:][: rows * wide]).view(rows, wide)
        qkv = torch.from_numpy(self._room[start + rows * wide :][: rows * apart]).view(rows, apart)
        queries = qkv[:, :wide].view(rows, shape.heads, shape.width)
        run(*fixed, 0, 1)
        for index in range(shape.layers):
            seen.copy_(look(index, queries.to(self.pool.whole.dtype)))
            run(*fixed, 2 * index + 1, min(2 * index + 3, 2 * shape.layers))

    def _room_for(self, rows: int) -> Array:
        if len(self._room) < rows * self._row:
            shape = self.shape
            self._room = np.empty(rows * self._row, np.float32)
            self._team.make_room(rows * max(shape.hidden, shape.heads * shape.width, shape.inner))
        return self._room
