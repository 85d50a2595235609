"""The fused decoder in torch: on a GPU, and on a CPU where the bits of a row must not depend on its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.layout import DecoderShape, DecoderWeights, LayerWeights
from actors.engines.decoder.torch.padded_batch import PaddedBatch
from actors.engines.engine import PerRow, Trunk
from actors.engines.weights.layers import Linear, Matrix, fast

Look = Callable[[int, Tensor], Tensor]  # layer and queries (rows, heads, width) -> (rows, heads * width)


@dataclass(slots=True)
class Block:
    """One layer, ready to run."""

    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    out: Linear
    inner_norm: Tensor
    gate_up: Linear
    down: Linear


class TorchBody:
    """From tokens to logits over a pool. ``exact``: see :mod:`actors.engines.decoder.torch.attention`."""

    def __init__(self, weights: DecoderWeights, pool: KVPool, dtype: torch.dtype, int8: bool, exact: bool) -> None:
        self.shape: DecoderShape = weights.shape
        self.pool = pool
        self.dtype = dtype
        self.exact = exact
        self.embedding = weights.embedding.weight
        self.device = weights.embedding.weight.device

        def linear(matrix: Matrix) -> Linear:
            return fast(matrix, dtype, int8 and not exact)

        def block(layer: LayerWeights) -> Block:
            assert layer.attention_norm is not None and layer.mlp_norm is not None, "see `is_plain`"
            assert layer.up is not None and layer.down is not None
            return Block(
                layer.attention_norm.weight,
                linear(layer.qkv),
                None if layer.head_norms is None else layer.head_norms.to(dtype),
                linear(layer.out),
                layer.mlp_norm.weight,
                linear(layer.up),
                linear(layer.down),
            )

        self.head, self.norm = linear(weights.head), weights.norm.weight
        self.blocks = [block(layer) for layer in weights.layers]
        self.taps: tuple[int, ...] = ()  # see :meth:`actors.engines.engine.Engine.tap`
        self._states: dict[int, Tensor] = {}
        hidden = weights.shape.hidden
        self._root = hidden**0.5
        self._floor = torch.tensor((hidden * weights.shape.eps) ** 0.5, device=self.device)

    @torch.inference_mode()
    def run(self, batch: PaddedBatch) -> Tensor:
        """float32 logits of the rows that the batch keeps."""
        ids = torch.tensor(batch.tokens, dtype=torch.int64, device=self.device)
        where = torch.tensor(batch.slots, dtype=torch.int64, device=self.device)
        x = self.layers(ids, batch.turns, where, batch.attention(self.pool, self.shape, self.exact), in_prompt=True)
        if batch.keep is not None:
            x = x[batch.keep]
        return self.logits(x).float()

    def layers(self, ids: Tensor, turns: Tensor, where: Tensor, look: Look, in_prompt: bool = False) -> Tensor:
        """Hidden states ``(rows, hidden)`` of tokens ``ids``, each turned by its row of ``turns``. The first
        ``len(where)`` rows' keys and values are written into those slots before anything looks at them.

        Whatever changes from round to round is in tensors, so that a CUDA graph may hold it. ``in_prompt``: the rows
        are a prompt's piece, with bits that may depend on their number.
        """
        shape, count = self.shape, where.shape[0]
        turns = turns[:, None]
        x = self.embedding.index_select(0, ids)
        for index, block in enumerate(self.blocks):
            self.keep(index, x)
            qkv = block.qkv.multiply(self._rms(x, block.input_norm))
            heads = self._turned(qkv, block, turns)
            queries = heads[:, : shape.heads]
            keys = heads[:count, shape.heads :].transpose(0, 1)
            values = qkv[:count, shape.rotated :].view(count, shape.kv_heads, shape.width).transpose(0, 1)
            self.pool.write(index, where, keys, values)
            x.add_(block.out.multiply(look(index, queries)))
            inner = block.gate_up.multiply(self._rms(x, block.inner_norm))
            gate, up = inner[:, : shape.inner], inner[:, shape.inner :]
            x.add_(block.down.multiply(functional.silu(gate).mul_(up)))
        self.keep(shape.layers, x)
        return x

    def keep(self, layer: int, x: Tensor) -> None:
        """The states ``x`` enter that layer."""
        if layer in self.taps:
            self._states[layer] = x.clone()

    def trunk(self, shape: DecoderShape) -> Trunk:
        """See :meth:`actors.engines.engine.Engine.trunk`."""

        def linear(weight: Tensor) -> PerRow:
            return fast(Matrix(weight.to(self.device, self.dtype)), self.dtype, False).multiply

        return Trunk(
            *(shape.hidden, shape.layers, shape.vocabulary, self.device, self.dtype),
            *(lambda ids: self.embedding[ids], lambda x: self._rms(x, self.norm)),
            *(lambda x: self.head.multiply(x).float(), linear),
            neighbours=True,
        )

    def tapped(self) -> Tensor:
        """See :meth:`actors.engines.engine.Engine.tapped`. PerRow that were padded are among them."""
        return torch.cat([self._states[layer] for layer in self.taps], 1)

    def logits(self, x: Tensor) -> Tensor:
        """In the model's type, or float32 where the kernel gives that."""
        return self.head.multiply(self._rms(x, self.norm))

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
        wide = heads.float()  # itself if it is float32, so that it is turned where it lies
        torch.view_as_complex(wide.view(*wide.shape[:2], -1, 2)).mul_(turns)
        return wide.to(heads.dtype)
