"""The fused decoder in torch's operations: on a GPU for what no graph holds, and where Triton is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.layout import DecoderShape, DecoderWeights, LayerWeights
from actors.engines.decoder.torch.attention import PoolAttention, Stretch
from actors.engines.decoder.torch.branches import View, view
from actors.engines.decoder.torch.causal_attention import CausalAttention
from actors.engines.engine import PerRow, Trunk
from actors.engines.flat_batch import SPAN, FlatBatch, Segment
from actors.engines.weights.layers import Matrix

Look = Callable[[int, Tensor], Tensor]  # layer and queries (rows, heads, width) -> (rows, heads * width)


@dataclass(slots=True)
class Block:
    """One layer, ready to run."""

    input_norm: Tensor
    qkv: Matrix
    query_norm: Tensor | None
    out: Matrix
    inner_norm: Tensor
    gate_up: Matrix
    down: Matrix


class TorchBody:
    """From tokens to logits over a pool. ``exact``: see :mod:`actors.engines.decoder.torch.attention`."""

    def __init__(self, weights: DecoderWeights, pool: KVPool, positions: int, exact: bool) -> None:
        """``positions``: of the longest text."""
        self.shape: DecoderShape = weights.shape
        self.pool, self.dtype, self.exact = pool, pool.dtype, exact
        self.turns = weights.turns(positions)
        self.embedding, self.device = weights.embedding, pool.device

        def block(layer: LayerWeights) -> Block:
            assert layer.norms.attention is not None and layer.norms.mlp is not None, "see `is_plain`"
            assert layer.up is not None and layer.down is not None
            return Block(
                layer.norms.attention.weight,
                layer.qkv,
                None if layer.head_norms is None else layer.head_norms.to(pool.dtype),
                layer.out,
                layer.norms.mlp.weight,
                layer.up,
                layer.down,
            )

        self.head, self.norm = weights.head, weights.norm.weight
        self.blocks = [block(layer) for layer in weights.layers]
        self.taps: tuple[int, ...] = ()  # see :meth:`actors.engines.engine.Engine.tap`
        self._states: dict[int, Tensor] = {}

    @torch.inference_mode()
    def run(self, batch: FlatBatch, select: Sequence[int] | None) -> Tensor:
        """float32 logits of the rows ``select``, or of all."""
        told = (batch.tokens, batch.positions, batch.slots)
        ids, places, where = (torch.tensor(each, dtype=torch.int64, device=self.device) for each in told)
        turns, look = self.turns.index_select(0, places), self._look(batch.segments)
        x = self.layers(ids, turns, where, look, in_prompt=True)
        return self.logits(x if select is None else x[list(select)]).float()

    def _look(self, segments: Sequence[Segment]) -> Look:
        scale = self.shape.width**-0.5
        if self.device.type == "cuda" and len(segments) == 1 and segments[0].prompt:
            return CausalAttention(self.pool, segments[0], scale)
        stretches = []
        for segment in segments:
            look = view(segment, SPAN) if self.exact else View(segment.visible)
            mask = torch.from_numpy(np.where(look.visible, np.float32(0), np.float32(-np.inf)))
            stretches.append(Stretch(segment.base, segment.span, mask.to(self.device, self.dtype), look.copies))
        return PoolAttention(self.pool, stretches, self.shape.heads, scale, exact=self.exact)

    def layers(self, ids: Tensor, turns: Tensor, where: Tensor, look: Look, in_prompt: bool = False) -> Tensor:
        """Hidden states ``(rows, hidden)`` of tokens ``ids``, each turned by its row of ``turns``. The rows' keys and
        values are written into the slots ``where`` before anything looks at them.

        Whatever changes from round to round is in tensors, so that a CUDA graph may hold it. ``in_prompt``: the rows
        are a prompt's piece, with bits that may depend on their number.
        """
        shape, rows = self.shape, ids.shape[0]
        turns = turns[:, None]
        x = self.embedded(ids)
        for index, block in enumerate(self.blocks):
            self.keep(index, x)
            qkv = block.qkv.multiply(self._rms(x, block.input_norm))
            heads = self._turned(qkv, block, turns)
            keys = heads[:, shape.heads :].transpose(0, 1)
            values = qkv[:, shape.rotated :].view(rows, shape.kv_heads, shape.width).transpose(0, 1)
            self.pool.write(index, where, keys, values)
            x.add_(block.out.multiply(look(index, heads[:, : shape.heads])))
            gate, up = block.gate_up.multiply(self._rms(x, block.inner_norm)).chunk(2, 1)
            x.add_(block.down.multiply(functional.silu(gate).mul_(up)))
        self.keep(shape.layers, x)
        return x

    def keep(self, layer: int, x: Tensor) -> None:
        """The states ``x`` enter that layer."""
        if layer in self.taps:
            self._states[layer] = x.clone()

    def trunk(self) -> Trunk:
        """See :meth:`actors.engines.engine.Engine.trunk`."""

        def linear(weight: Tensor) -> PerRow:
            return Matrix(weight.to(self.device, self.dtype)).multiply

        return Trunk(
            *(self.shape.hidden, self.shape.layers, self.shape.vocabulary, self.device, self.dtype),
            *(self.embedded, lambda x: self._rms(x, self.norm), lambda x: self.scored(x).float(), linear),
            neighbours=True,
        )

    def tapped(self) -> Tensor:
        """See :meth:`actors.engines.engine.Engine.tapped`."""
        return torch.cat([self._states[layer] for layer in self.taps], 1)

    def logits(self, x: Tensor) -> Tensor:
        """In the model's type, or float32 where the kernel gives that."""
        return self.scored(self._rms(x, self.norm))

    def embedded(self, ids: Tensor) -> Tensor:
        """``(*ids, hidden)``."""
        return self.embedding.rows(ids, self.dtype)

    def scored(self, x: Tensor) -> Tensor:
        """The logits of what the last norm gave."""
        return self.head.multiply(x)

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self.shape.eps)

    def _turned(self, qkv: Tensor, block: Block, turns: Tensor) -> Tensor:
        """Queries and keys ``(rows, heads + kv_heads, width)``, normed if the family does, and turned."""
        shape = self.shape
        heads = qkv[:, : shape.rotated].view(-1, shape.heads + shape.kv_heads, shape.width)
        if block.query_norm is not None:
            heads = functional.rms_norm(heads, (shape.width,), None, shape.eps) * block.query_norm
        wide = heads.float()  # itself if it is float32, so that it is turned where it lies
        torch.view_as_complex(wide.view(*wide.shape[:2], -1, 2)).mul_(turns)
        return wide.to(heads.dtype)
