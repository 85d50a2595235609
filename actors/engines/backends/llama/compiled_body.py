"""The fused decoder in float32 on a CPU where numba is: matrix products, and our kernels between them.

What torch does between the products of one row's forward takes longer than reading the weights of a small model: some
forty operations a layer, most of them on a few hundred numbers.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.attention import MAX_ROUND
from actors.engines.backends.llama.batch import Batch
from actors.engines.backends.llama.linear import Linear, rows_for
from actors.engines.backends.llama.weights import Layer, Matrix, Shape, Weights
from actors.engines.pool import KVPool

Array = NDArray[np.float32]
Multiply = Callable[[Array], Array]
# the layer of a matrix and its scale, as :class:`Linear`; the second argument is ``behind`` of :func:`linear.fast`
Products = Callable[[Matrix, bool], tuple[Multiply, float]]
log = logging.getLogger("duoactor.engines")


def compiled_kernels() -> ModuleType | None:
    """The kernels, compiled or read from numba's cache; None without numba, or where it cannot keep or compile them."""
    if importlib.util.find_spec("numba") is None:
        return None
    from numba.core import event

    class Announcement(event.Listener):  # type: ignore[misc]
        told = False

        def on_start(self, event: object) -> None:
            if not self.told:
                log.info("compiling the layers for this processor; the next start reads them from disk")
            self.told = True

        def on_end(self, event: object) -> None: ...

    try:
        with event.install_listener("numba:compile", Announcement()):
            from actors.engines.backends.llama import kernels
    except Exception as error:
        log.warning("numba cannot compile the decoder's kernels, and slower operations are used: %s", error)
        return None
    return kernels


def fits(shape: Shape, lanes: int) -> bool:
    return shape.width % lanes == 0 and shape.hidden % lanes == 0


@dataclass(slots=True)
class Block:
    """One layer, ready to run. The norms' weights hold the scale of the product behind them."""

    input_norm: Array
    qkv: Multiply
    query_norm: Array  # no rows: the family has none
    out: Multiply
    out_scale: float
    inner_norm: Array
    gate_up: Multiply
    down: Multiply
    down_scale: float
    keys: Array
    values: Array
    pool: tuple[int, int]  # the addresses of both


class CompiledBody:
    """From tokens to logits over a pool. The bits of a row depend on what it sees alone, up to ``MAX_ROUND`` rows, if
    the products' do."""

    def __init__(self, weights: Weights, pool: KVPool, kernels: ModuleType, team: Any, product: Products) -> None:
        """``team``: the :class:`actors.engines.backends.llama.team.Team` that attends."""
        self.shape: Shape = weights.shape
        self.pool = pool
        self._kernels, self._team = kernels, team
        self._embedding: Array = weights.embedding.numpy()
        unnormed = np.zeros((0, self.shape.width), dtype=np.float32)

        def block(layer: Layer, keys: Tensor, values: Tensor) -> Block:
            (qkv, qkv_scale), (gate_up, inner_scale) = product(layer.qkv, False), product(layer.gate_up, False)
            return Block(
                (layer.input_norm * qkv_scale).numpy(),
                qkv,
                unnormed if layer.query_norm is None else layer.query_norm.numpy(),
                *product(layer.out, True),
                (layer.inner_norm * inner_scale).numpy(),
                gate_up,
                *product(layer.down, True),
                keys.numpy(),
                values.numpy(),
                (keys.data_ptr(), values.data_ptr()),
            )

        self._head, scale = product(weights.head, False)
        self._norm: Array = (weights.norm * scale).numpy()
        self.blocks = [block(*parts) for parts in zip(weights.layers, pool.keys, pool.values, strict=True)]

    def run(self, batch: Batch) -> Tensor:
        """float32 logits of the rows that the batch keeps."""
        kernels, shape, eps = self._kernels, self.shape, self.shape.eps
        rows = len(batch.tokens)
        slots = np.array(batch.slots, dtype=np.int64)
        turns: Array = torch.view_as_real(batch.turns).numpy().reshape(rows, -1)
        attend = self._attention(batch)
        x = self._embedding.take(batch.tokens, 0)
        normed, seen, gated = (
            np.empty((rows, n), dtype=np.float32) for n in (shape.hidden, shape.heads * shape.width, shape.inner)
        )
        kernels.norm(x, self.blocks[0].input_norm, eps, normed)
        after = [*(block.input_norm for block in self.blocks[1:]), self._norm]
        for index, (block, following) in enumerate(zip(self.blocks, after, strict=True)):
            qkv = block.qkv(normed)
            kernels.turn_and_store(qkv, turns, block.query_norm, eps, block.keys, block.values, slots)
            attend(index, qkv, seen)
            kernels.add_and_norm(x, block.out(seen), block.out_scale, block.inner_norm, eps, normed)
            kernels.gated(block.gate_up(normed), gated)
            kernels.add_and_norm(x, block.down(gated), block.down_scale, following, eps, normed)
        return torch.from_numpy(self._head(normed if batch.keep is None else normed[batch.keep]))

    def _attention(self, batch: Batch) -> Callable[[int, Array, Array], None]:
        """What puts into its last argument what the rows of q/k/v see in a layer."""
        shape, segments = self.shape, batch.segments
        if any(segment.rows > MAX_ROUND for segment in segments):  # of a prompt: the library's attention is quicker
            look = batch.attention(self.pool, shape)

            def attend_prompt(index: int, qkv: Array, out: Array) -> None:
                queries = torch.from_numpy(qkv)[:, : shape.heads * shape.width]
                out[:] = look(index, queries.view(-1, shape.heads, shape.width)).numpy()

            return attend_prompt
        kernels = self._kernels
        count, span = len(batch.slots), max(segment.span for segment in segments)
        room = -(-span // kernels.LANES) * kernels.LANES
        places, counts = np.empty((count, room), dtype=np.int64), np.empty(count, dtype=np.int64)
        ends = np.cumsum([segment.rows for segment in segments])
        for segment, end in zip(segments, ends, strict=True):
            kernels.collect(np.ascontiguousarray(segment.visible), segment.base, end - segment.rows, places, counts)
        look_up = kernels.Attention(self._team, self.blocks[0].keys, shape.heads, places, counts, ends)

        def attend(index: int, qkv: Array, out: Array) -> None:
            look_up(qkv, self.blocks[index].pool, out)

        return attend


def on_arrays(linear: Linear, exact: bool) -> tuple[Multiply, float]:
    """One of torch's layers. ``exact``: its input is filled up to a number of rows whose sums run in one order."""
    multiply = linear.multiply

    def product(x: Array) -> Array:
        rows = len(x)
        padded = rows_for(rows) if exact else rows
        if padded > rows:
            x = np.concatenate([x, np.zeros((padded - rows, x.shape[1]), dtype=np.float32)])
        out: Array = multiply(torch.from_numpy(x)).numpy()
        return out[:rows]

    return product, linear.scale
