"""The fused decoder for small draft models on a CPU: numpy's overhead per operation is a third of torch's.

Bits depend on the shapes here; for a target, whose linear layers dominate, it won nothing (17M: 1.0x). It shares the
pool's memory with torch, and uses torch for what torch does quicker. numpy brings its own BLAS, whose threads are
limited by OPENBLAS_NUM_THREADS, set before the process imports it.
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

from actors.engines.fused_batch import Batch
from actors.engines.fused_linear import unscaled
from actors.engines.fused_weights import Layer, Matrix, Weights
from actors.engines.pool import KVPool

Array = NDArray[np.float32]
TRIED = (1, 2, 8)  # row counts at which a matrix's kernels are timed; each holds up to the next
ANY = 1 << 30
CACHED = 4_000_000  # weights up to which they stay in the cache between steps, as they do while they are timed


class Product:
    """``x W^T + b`` by numpy or by a packed kernel of torch's, whichever is quicker for that many rows here."""

    __slots__ = ("bias", "packed", "packed_from", "packed_to", "table")

    def __init__(self, matrix: Matrix, int8: bool, cached: bool) -> None:
        """``cached``: otherwise the time is that of reading weights, and packed ones are half as large or less."""
        self.table: Array = matrix.weight.t().contiguous().numpy()
        self.bias: Array | None = None if matrix.bias is None else matrix.bias.numpy()
        self.packed = unscaled(matrix, int8)
        self.packed_from = self.packed_to = 0
        if self.packed is None:
            return
        if not cached:
            self.packed_to = ANY
            self.table = np.empty((0, 0), dtype=np.float32)
            return
        chance = np.random.default_rng(0)
        inputs = [chance.standard_normal((rows, len(self.table)), dtype=np.float32) for rows in TRIED]
        wins = [quickest(partial(self._packed, x)) < quickest(partial(self._table, x)) for x in inputs]
        if any(wins):
            ends = (*TRIED, ANY)
            self.packed_from = ends[wins.index(True)]
            self.packed_to = ends[len(wins) - wins[::-1].index(True)]

    def __call__(self, x: Array) -> Array:
        return self._packed(x) if self.packed_from <= len(x) < self.packed_to else self._table(x)

    def _packed(self, x: Array) -> Array:
        out: Array = self.packed(torch.from_numpy(x)).numpy()  # type: ignore[misc]
        return out

    def _table(self, x: Array) -> Array:
        out: Array = x @ self.table
        if self.bias is not None:
            out += self.bias
        return out


def quickest(call: Callable[[], object], times: int = 7) -> float:
    """Seconds of the quickest of a few calls."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


@dataclass(slots=True)
class Block:
    input_norm: Array
    qkv: Product
    query_norm: Array | None
    out: Product
    inner_norm: Array
    gate_up: Product
    down: Product
    keys: Array  # the pool's memory
    values: Array


class NumpyBody:
    """From tokens to logits over a pool, like :class:`actors.engines.fused_torch.TorchBody`."""

    def __init__(self, weights: Weights, pool: KVPool, int8: bool) -> None:
        self.shape = weights.shape
        self.embedding: Array = weights.embedding.numpy()
        self.norm: Array = weights.norm.numpy()
        cached = weights.count() <= CACHED
        product = partial(Product, int8=int8, cached=cached)
        self.head = product(weights.head)

        def block(layer: Layer, keys: Tensor, values: Tensor) -> Block:
            return Block(
                layer.input_norm.numpy(),
                product(layer.qkv),
                None if layer.query_norm is None else layer.query_norm.numpy(),
                product(layer.out),
                layer.inner_norm.numpy(),
                product(layer.gate_up),
                product(layer.down),
                keys.numpy(),
                values.numpy(),
            )

        self.blocks = [block(*parts) for parts in zip(weights.layers, pool.keys, pool.values, strict=True)]

    def run(self, batch: Batch) -> Tensor:
        """float32 logits of the rows that the batch keeps."""
        shape, count = self.shape, len(batch.tokens)
        first = batch.slots[0]
        place: slice | NDArray[np.int64] = slice(first, first + 1) if count == 1 else np.asarray(batch.slots)
        turns: NDArray[np.complex64] = batch.turns.numpy()[:, None]
        x: Array = self.embedding.take(batch.tokens, 0)
        for block in self.blocks:
            qkv = block.qkv(self._rms(x, block.input_norm))
            heads = qkv[:, : shape.rotated].reshape(count, shape.heads + shape.kv_heads, shape.width)
            if block.query_norm is not None:
                heads = self._rms(heads, block.query_norm)
            pairs = heads.view(np.complex64)
            pairs *= turns
            values = qkv[:, shape.rotated :].reshape(count, shape.kv_heads, shape.width)
            block.keys[:, place] = heads[:, shape.heads :].transpose(1, 0, 2)
            block.values[:, place] = values.transpose(1, 0, 2)
            queries = heads[:, : shape.heads].transpose(1, 0, 2)
            x += block.out(self._attention(block, queries, batch))
            inner = block.gate_up(self._rms(x, block.inner_norm))
            product = _silu(inner[:, : shape.inner])
            product *= inner[:, shape.inner :]
            x += block.down(product)
        if batch.keep is not None:
            x = x[batch.keep]
        return torch.from_numpy(self.head(self._rms(x, self.norm)))

    def _rms(self, x: Array, weight: Array) -> Array:
        width = x.shape[-1]
        squares = np.einsum("...i,...i->...", x, x)
        squares += np.float32(width * self.shape.eps)
        inverse = np.float32(width**0.5) / np.sqrt(squares)
        out: Array = x * inverse[..., None]
        out *= weight
        return out

    def _attention(self, block: Block, queries: Array, batch: Batch) -> Array:
        shape = self.shape
        group = shape.heads // shape.kv_heads
        scaled = np.multiply(queries, np.float32(shape.width**-0.5), order="C")
        outs: list[Array] = []
        start = 0
        for (base, span), mask in zip(batch.spans, batch.masks, strict=True):
            rows = len(mask)
            part = scaled if len(batch.spans) == 1 else scaled[:, start : start + rows]
            stacked = part.reshape(shape.kv_heads, group * rows, shape.width)
            scores = stacked @ block.keys[:, base : base + span].transpose(0, 2, 1)
            whole = scores.reshape(shape.heads, rows, span)
            whole += mask
            weights = torch.softmax(torch.from_numpy(scores), -1).numpy()
            seen = (weights @ block.values[:, base : base + span]).reshape(shape.heads, rows, shape.width)
            outs.append(seen.transpose(1, 0, 2).reshape(rows, -1))
            start += rows
        return outs[0] if len(outs) == 1 else np.concatenate(outs)


def _silu(x: Array) -> Array:
    half = x * np.float32(0.5)
    out: Array = np.tanh(half)  # unlike exp(-x) it cannot overflow
    out += np.float32(1)
    out *= half
    return out
