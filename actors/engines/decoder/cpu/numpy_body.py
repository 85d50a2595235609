"""The fused decoder for small draft models on a CPU: numpy's overhead per operation is a third of torch's.

Bits depend on the shapes here; for a target, whose linear layers dominate, it won nothing (17M: 1.0x). It shares the
pool's memory with torch, and uses torch for what torch does quicker. numpy brings its own BLAS, whose threads are
limited by OPENBLAS_NUM_THREADS, set before the process imports it.

A step of such a model is some fifty operations of a microsecond, so whatever is constant is put into the weights
(norms, the half in the sigmoid) or, once a step, into the rotations (the scale of the scores).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.torch.attention import MAX_ROUND, attend_prompt
from actors.engines.decoder.torch.padded_batch import PaddedBatch
from actors.engines.decoder.weights import Layer, Weights
from actors.engines.weights.layers import Matrix, unscaled

Array = NDArray[np.float32]
TRIED = (1, 2, 8)  # row counts at which a matrix's kernels are timed; each holds up to the next
ANY = 1 << 30
CACHED = 4_000_000  # weights up to which they stay in the cache between steps, as they do while they are timed


class Product:
    """``(x * norm) W^T + b`` by numpy or by torch's packed kernel, whichever is quicker for that many rows here."""

    __slots__ = ("bias", "norm", "packed", "packed_from", "packed_to", "table")

    def __init__(self, matrix: Matrix, norm: Tensor | None = None, *, int8: bool, cached: bool) -> None:
        """``cached``: otherwise the time is that of reading weights, and packed ones are half as large or less."""
        weight = matrix.weight if norm is None else matrix.weight * norm
        self.table: Array = weight.t().contiguous().numpy()
        self.norm: Array | None = None if norm is None else norm.numpy()
        self.bias: Array | None = None if matrix.bias is None else matrix.bias.numpy()
        self.packed = unscaled(matrix, int8)  # as published: times the norm it may not fit float16
        self.packed_from = self.packed_to = 0
        if self.packed is None:
            return
        if not cached:
            self.packed_to = ANY
            self.table = np.empty((0, 0), dtype=np.float32)
            return
        chance = np.random.default_rng(0)
        inputs = [chance.standard_normal((rows, len(self.table)), dtype=np.float32) for rows in TRIED]
        wins = [quicker(partial(self._packed, x), partial(self._table, x)) for x in inputs]
        if any(wins):
            ends = (*TRIED, ANY)
            self.packed_from = ends[wins.index(True)]
            self.packed_to = ends[len(wins) - wins[::-1].index(True)]

    def __call__(self, x: Array) -> Array:
        return self._packed(x) if self.packed_from <= len(x) < self.packed_to else self._table(x)

    def _packed(self, x: Array) -> Array:
        normed = x if self.norm is None else x * self.norm
        out: Array = self.packed(torch.from_numpy(normed)).numpy()  # type: ignore[misc]
        return out

    def _table(self, x: Array) -> Array:
        out: Array = x @ self.table
        if self.bias is not None:
            out += self.bias
        return out


def quicker(one: Callable[[], object], other: Callable[[], object], times: int = 7) -> bool:
    """Whether ``one`` takes less time at its best. Turn by turn: each finds the nearest caches full of the other's
    weights, as it would find them full of other layers'."""
    best = [float("inf")] * 2
    for _ in range(times):
        for i, call in enumerate((one, other)):
            began = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - began)
    return best[0] < best[1]


@dataclass(slots=True)
class Block:
    qkv: Product
    query_norm: Array | None
    out: Product
    gate_up: Product
    down: Product
    pool: Array  # keys and values (2, kv_heads, slots, width) in the pool's memory


class NumpyBody:
    """From tokens to logits over a pool, like :class:`actors.engines.decoder.torch.body.TorchBody`."""

    def __init__(self, weights: Weights, pool: KVPool, int8: bool) -> None:
        self.shape = shape = weights.shape
        self.embedding: Array = weights.embedding.numpy()
        product = partial(Product, int8=int8, cached=weights.count() <= CACHED)
        root = shape.hidden**0.5
        self.head = product(weights.head, weights.norm * root)

        def block(layer: Layer, memory: Tensor) -> Block:
            return Block(
                product(layer.qkv, layer.input_norm * root),
                None if layer.query_norm is None else (layer.query_norm * shape.width**0.5).numpy(),
                product(layer.out),
                product(_with_half_the_gate(layer.gate_up), layer.inner_norm * root),
                product(layer.down),
                memory.numpy(),
            )

        self.blocks = [block(*parts) for parts in zip(weights.layers, pool.whole, strict=True)]
        self._shrink = np.complex64(shape.width**-0.25)  # of queries and of keys: together the scale of the scores

    @torch.inference_mode()
    def run(self, batch: PaddedBatch) -> Tensor:
        """float32 logits of the rows that the batch keeps."""
        shape, count = self.shape, len(batch.tokens)
        heads, kv_heads, width, inner = shape.heads, shape.kv_heads, shape.width, shape.inner
        first = batch.slots[0]
        place: slice | NDArray[np.int64] = slice(first, first + 1) if count == 1 else np.asarray(batch.slots)
        turns: NDArray[np.complex64] = (batch.turns.numpy() * self._shrink)[:, None]
        x: Array = self.embedding.take(batch.tokens, 0)
        for block in self.blocks:
            parts = block.qkv(self._unit(x)).reshape(count, heads + 2 * kv_heads, width)
            turned = parts[:, : heads + kv_heads]
            if block.query_norm is not None:
                np.multiply(self._unit(turned), block.query_norm, out=turned)
            pairs = turned.view(np.complex64)
            pairs *= turns
            block.pool[:, :, place] = parts[:, heads:].reshape(count, 2, kv_heads, width).transpose(1, 2, 0, 3)
            x += block.out(self._attention(block, parts[:, :heads].transpose(1, 0, 2), batch))
            both = block.gate_up(self._unit(x))
            gate = both[:, :inner]
            product = np.tanh(gate)  # 2 g sigmoid(2 g) = g + g tanh(g); unlike exp it cannot overflow
            product += 1
            product *= gate
            product *= both[:, inner:]
            x += block.down(product)
        if batch.keep is not None:
            x = x[batch.keep]
        return torch.from_numpy(self.head(self._unit(x)))

    def _unit(self, x: Array) -> Array:
        """``x`` over its length along the last axis; the root of that axis' size is in the norm behind."""
        squares: Array = np.add.reduce(x * x, -1, keepdims=True)
        squares += x.shape[-1] * self.shape.eps
        np.sqrt(squares, out=squares)
        return x / squares

    def _attention(self, block: Block, queries: Array, batch: PaddedBatch) -> Array:
        keys, values = block.pool
        outs: list[Array] = []
        start = 0
        for segment, mask in zip(batch.segments, batch.masks(batch.segments), strict=True):
            rows, base, span = len(mask), segment.base, segment.span
            part = queries if len(batch.segments) == 1 else queries[:, start : start + rows]
            attend = self._attend if rows <= MAX_ROUND else _attend_prompt
            seen = attend(part, keys[:, base : base + span], values[:, base : base + span], mask)
            outs.append(seen.transpose(1, 0, 2).reshape(rows, -1))
            start += rows
        return outs[0] if len(outs) == 1 else np.concatenate(outs)

    def _attend(self, queries: Array, keys: Array, values: Array, mask: Array) -> Array:
        heads, rows, width = queries.shape
        stacked = queries.reshape(len(keys), -1, width)
        scores = stacked @ keys.transpose(0, 2, 1)
        whole = scores.reshape(heads, rows, -1)
        whole += mask
        weights = torch.softmax(torch.from_numpy(scores), -1).numpy()
        seen: Array = (weights @ values).reshape(heads, rows, width)
        return seen


def _attend_prompt(queries: Array, keys: Array, values: Array, mask: Array) -> Array:
    query, key, value, bias = map(torch.from_numpy, (queries, keys, values, mask))
    seen: Array = attend_prompt(query, key, value, bias, 1.0).numpy()
    return seen


def _with_half_the_gate(gate_up: Matrix) -> Matrix:
    """Rows of the gate by one half: exact, and silu(2 g) = g + g tanh(g)."""
    half = gate_up.weight.new_ones(len(gate_up.weight))
    half[: len(half) // 2] = 0.5
    return Matrix(gate_up.weight * half[:, None], None if gate_up.bias is None else gate_up.bias * half)
