"""The fused decoder in torch: on a GPU, and on a CPU where the bits of a row must not depend on its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.attention import attend
from actors.engines.engine import Segment
from actors.engines.fused_linear import Linear, fast, rows_for
from actors.engines.fused_weights import Layer, Matrix, Shape, Weights
from actors.engines.pool import KVPool


@dataclass(slots=True)
class Block:
    """One layer, ready to run. The norms' weights hold the scale of the linear layer behind them."""

    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    out: Linear
    inner_norm: Tensor
    gate_up: Linear
    down: Linear


class TorchBody:
    """From tokens to logits over a pool. ``exact``: see :mod:`actors.engines.attention`."""

    def __init__(self, weights: Weights, pool: KVPool, dtype: torch.dtype, int8: bool, exact: bool) -> None:
        self.shape: Shape = weights.shape
        self.pool = pool
        self.dtype = dtype
        self.exact = exact
        self.embedding = weights.embedding
        self.device = weights.embedding.device

        def linear(matrix: Matrix, behind: bool) -> Linear:
            return fast(matrix, dtype, int8, exact, behind)

        def block(layer: Layer) -> Block:
            qkv, gate_up = linear(layer.qkv, False), linear(layer.gate_up, False)
            return Block(
                layer.input_norm * qkv.scale,
                qkv,
                layer.query_norm,
                linear(layer.out, True),
                layer.inner_norm * gate_up.scale,
                gate_up,
                linear(layer.down, True),
            )

        self.head = linear(weights.head, False)
        self.norm = weights.norm * self.head.scale
        self.blocks = [block(layer) for layer in weights.layers]
        self.padded = any(
            part.kind == "half" for b in self.blocks for part in (b.qkv, b.out, b.gate_up, b.down)
        ) or self.head.kind == "half"
        hidden = weights.shape.hidden
        self._root = hidden**0.5
        self._floor = torch.tensor((hidden * weights.shape.eps) ** 0.5, device=self.device)

    def run(
        self, tokens: Sequence[int], turns: Tensor, slots: Sequence[int], segments: Sequence[Segment],
        select: Sequence[int] | None,
    ) -> Tensor:
        """float32 logits. ``turns``: complex64 ``(n, width / 2)``."""
        shape, count = self.shape, len(tokens)
        rows = rows_for(count) if self.exact and self.padded else count
        ids = torch.tensor([*tokens, *[0] * (rows - count)], dtype=torch.int64, device=self.device)
        where = torch.tensor(slots, dtype=torch.int64, device=self.device)
        masks = [self._mask(segment) for segment in segments]
        turns = turns[:, None]
        if rows > count:
            turns = functional.pad(turns, (0, 0, 0, 0, 0, rows - count))
        x = self.embedding.index_select(0, ids)
        for index, block in enumerate(self.blocks):
            qkv = block.qkv.multiply(self._rms(x, block.input_norm))
            heads = self._turned(qkv, block, turns)
            queries = heads[:, : shape.heads].transpose(0, 1)
            keys = heads[:count, shape.heads :].transpose(0, 1)
            values = qkv[:count, shape.rotated :].view(count, shape.kv_heads, shape.width).transpose(0, 1)
            self.pool.write(index, where, keys, values)
            seen = self._attention(index, queries, segments, masks, rows)
            x.add_(block.out.multiply(seen), alpha=block.out.scale)
            inner = block.gate_up.multiply(self._rms(x, block.inner_norm))
            gate, up = inner.split(shape.inner, dim=1)
            x.add_(block.down.multiply(functional.silu(gate).mul_(up)), alpha=block.down.scale)
        x = x[:count]
        if select is not None:
            x = x[list(select)]
        wanted = x.shape[0]
        rows = rows_for(wanted) if self.exact and self.padded else wanted
        x = self._rms(x, self.norm)
        if rows > wanted:
            x = functional.pad(x, (0, 0, 0, rows - wanted))
        logits: Tensor = self.head.multiply(x)[:wanted].float()
        return logits

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return functional.rms_norm(x, weight.shape, weight, self.shape.eps)
        # torch has no fused RMS norm on a CPU: rms_norm is seven operations there
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x.mul(self._root / torch.hypot(length, self._floor)).mul_(weight)

    def _turned(self, qkv: Tensor, block: Block, turns: Tensor) -> Tensor:
        """Queries and keys ``(rows, heads + kv_heads, width)``, normed if the family does, and turned."""
        shape = self.shape
        heads = qkv[:, : shape.rotated].view(-1, shape.heads + shape.kv_heads, shape.width)
        if block.query_norm is not None:
            heads = functional.rms_norm(heads, (shape.width,), None, shape.eps) * block.query_norm
        if heads.dtype != torch.float32:
            wide = torch.view_as_complex(heads.float().unflatten(2, (-1, 2))).mul_(turns)
            return torch.view_as_real(wide).flatten(2).to(heads.dtype)
        torch.view_as_complex(heads.unflatten(2, (-1, 2))).mul_(turns)
        return heads

    def _mask(self, segment: Segment) -> Tensor:
        host = np.where(segment.visible, np.float32(0), np.float32(-np.inf))
        return torch.from_numpy(host).to(self.device, self.dtype)

    def _attention(
        self, layer: int, queries: Tensor, segments: Sequence[Segment], masks: Sequence[Tensor], rows: int
    ) -> Tensor:
        shape = self.shape
        out = torch.zeros(rows, shape.heads, shape.width, dtype=self.dtype, device=self.device)
        start = 0
        function = attend if self.exact else attend_freely
        for segment, mask in zip(segments, masks, strict=True):
            end = start + segment.rows
            keys, values = self.pool.view(layer, segment.base, segment.span)
            seen = function(queries[:, start:end], keys, values, mask, shape.width**-0.5)
            out[start:end].copy_(seen.transpose(0, 1))
            start = end
        return out.view(rows, -1)


def attend_freely(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """:func:`attend` with as few operations as will do, where bits do not matter."""
    heads, rows, width = query.shape
    kv_heads, span, _ = keys.shape
    group = heads // kv_heads
    stacked = query.reshape(kv_heads, group * rows, width)
    bias = mask if group == 1 else mask.repeat(group, 1)
    scores = torch.baddbmm(bias[None], stacked, keys.transpose(1, 2), alpha=scale)
    return torch.bmm(torch.softmax(scores, dim=-1), values).view(heads, rows, width)
