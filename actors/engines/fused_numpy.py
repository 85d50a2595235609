"""The fused decoder for very small draft models: numpy's overhead per operation is a third of torch's.

Bits depend on the shapes here, so it is for draft models only. It shares the pool's memory with torch. numpy brings its
own BLAS, whose threads are limited by OPENBLAS_NUM_THREADS, set before the process imports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.engine import Segment
from actors.engines.fused_linear import Multiply, unscaled
from actors.engines.fused_weights import Layer, Matrix, Weights
from actors.engines.pool import KVPool

Array = NDArray[np.float32]
TRIED = (1, 2, 8)  # row counts at which a matrix's kernels are timed; each holds up to the next


class Product:
    """``x W^T + b`` by numpy or by a packed kernel of torch's, whichever is quicker for that many rows here."""

    __slots__ = ("bias", "packed_from", "packed", "packed_to", "table")

    def __init__(self, matrix: Matrix, int8: bool) -> None:
        self.table: Array = matrix.weight.t().contiguous().numpy()
        self.bias: Array | None = None if matrix.bias is None else matrix.bias.numpy()
        self.packed: Multiply | None = unscaled(matrix, int8)
        self.packed_from = self.packed_to = 0
        if self.packed is not None:
            chance = np.random.default_rng(0)
            inputs = [chance.standard_normal((rows, len(self.table)), dtype=np.float32) for rows in TRIED]
            wins = [quickest(lambda x=x: self._packed(x)) < quickest(lambda x=x: self._table(x)) for x in inputs]
            if any(wins):
                first, last = wins.index(True), len(wins) - 1 - wins[::-1].index(True)
                self.packed_from = TRIED[first]
                self.packed_to = TRIED[last + 1] if last + 1 < len(TRIED) else 1 << 30

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
    """From tokens to logits over a pool, like :class:`actors.engines.fused_torch.TorchBody`; float32 on a CPU only."""

    def __init__(self, weights: Weights, pool: KVPool, int8: bool) -> None:
        self.shape = weights.shape
        self.embedding: Array = weights.embedding.numpy()
        self.norm: Array = weights.norm.numpy()
        self.head = Product(weights.head, int8)

        def block(layer: Layer, keys: Tensor, values: Tensor) -> Block:
            return Block(
                layer.input_norm.numpy(),
                Product(layer.qkv, int8),
                None if layer.query_norm is None else layer.query_norm.numpy(),
                Product(layer.out, int8),
                layer.inner_norm.numpy(),
                Product(layer.gate_up, int8),
                Product(layer.down, int8),
                keys.numpy(),
                values.numpy(),
            )

        self.blocks = [block(*parts) for parts in zip(weights.layers, pool.keys, pool.values, strict=True)]

    def run(
        self,
        tokens: Sequence[int],
        turns: Tensor,
        slots: Sequence[int],
        segments: Sequence[Segment],
        select: Sequence[int] | None,
    ) -> Tensor:
        """float32 logits. ``turns``: complex64 ``(n, width / 2)``."""
        shape, count = self.shape, len(tokens)
        where = np.asarray(slots)
        place: slice | NDArray[np.int64] = slice(slots[0], slots[0] + 1) if count == 1 else where
        masks = [np.where(s.visible, np.float32(0), np.float32(-np.inf)) for s in segments]
        turning: NDArray[np.complex64] = turns.numpy()[:, None]
        x: Array = self.embedding.take(tokens, 0)
        every = shape.heads + shape.kv_heads
        for block in self.blocks:
            qkv = block.qkv(self._rms(x, block.input_norm))
            heads = qkv[:, : shape.rotated].reshape(count, every, shape.width)
            if block.query_norm is not None:
                heads = self._rms(heads, block.query_norm)
            pairs = heads.view(np.complex64)
            pairs *= turning
            block.keys[:, place] = heads[:, shape.heads :].transpose(1, 0, 2)
            values = qkv[:, shape.rotated :].reshape(count, shape.kv_heads, shape.width)
            block.values[:, place] = values.transpose(1, 0, 2)
            x += block.out(self._attention(block, heads[:, : shape.heads], segments, masks))
            inner = block.gate_up(self._rms(x, block.inner_norm))
            gate, up = inner[:, : shape.inner], inner[:, shape.inner :]
            x += block.down(_silu(gate) * up)
        if select is not None:
            x = x[list(select)]
        return torch.from_numpy(self.head(self._rms(x, self.norm)))

    def _rms(self, x: Array, weight: Array) -> Array:
        width = x.shape[-1]
        squares = np.einsum("...i,...i->...", x, x)
        squares += np.float32(width * self.shape.eps)
        inverse = np.float32(width**0.5) / np.sqrt(squares)
        out: Array = x * inverse[..., None]
        out *= weight
        return out

    def _attention(self, block: Block, queries: Array, segments: Sequence[Segment], masks: Sequence[Array]) -> Array:
        shape = self.shape
        group = shape.heads // shape.kv_heads
        scaled = np.multiply(queries.transpose(1, 0, 2), np.float32(shape.width**-0.5), order="C")
        outs: list[Array] = []
        start = 0
        for segment, mask in zip(segments, masks, strict=True):
            rows, end = segment.rows, segment.base + segment.span
            part = scaled if len(segments) == 1 else scaled[:, start : start + rows]
            stacked = part.reshape(shape.kv_heads, group * rows, shape.width)
            scores = stacked @ block.keys[:, segment.base : end].transpose(0, 2, 1)
            whole = scores.reshape(shape.heads, rows, segment.span)
            whole += mask
            weights = torch.softmax(torch.from_numpy(scores), -1).numpy()
            seen = (weights @ block.values[:, segment.base : end]).reshape(shape.heads, rows, shape.width)
            outs.append(seen.transpose(1, 0, 2).reshape(rows, -1))
            start += rows
        return outs[0] if len(outs) == 1 else np.concatenate(outs)


def _silu(x: Array) -> Array:
    half = x * np.float32(0.5)
    out: Array = np.tanh(half)  # unlike exp(-x) it cannot overflow
    out += np.float32(1)
    out *= half
    return out

