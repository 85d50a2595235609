"""The fused decoder by kernels of ours, for a GPU with Triton: nine launches a layer of a round instead of eighteen,
and a row's bits depend on no other row.

A prompt's rows go through cuBLAS, which is quicker for many (256 rows of a 12,288 x 4,096 matrix: half the time). Of
weights in small groups it gets their numbers, made for each product.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from actors.engines.cache.pool import KVPool
from actors.engines.decoder.gpu.groups import GroupedMatrix
from actors.engines.decoder.gpu.kernel_check import checked
from actors.engines.decoder.layout import DecoderWeights
from actors.engines.decoder.torch.body import Block, Look, TorchBody
from actors.engines.weights.layers import Matrix

log = logging.getLogger("duoactor.engines")
CLOSE = 0.1  # relative: 16 bits round differently through a deep model by a few hundredths, a fault by more than 1


class Kernels(NamedTuple):
    """The modules of :mod:`actors.engines.decoder.gpu.triton_kernels`, and what their launches ask of the GPU."""

    linear: Any
    groups: Any
    between: Any
    gpu: Any


class TritonBody(TorchBody):
    """:class:`TorchBody` on a GPU."""

    def __init__(self, weights: DecoderWeights, pool: KVPool, positions: int, exact: bool, kernels: Kernels) -> None:
        super().__init__(weights, pool, positions, exact)
        self._linear, self._groups, self._between, self._gpu = kernels

    def layers(self, ids: Tensor, turns: Tensor, where: Tensor, look: Look, in_prompt: bool = False) -> Tensor:
        """The splits' sums of a layer's products are added up by what comes next."""
        eps = self.shape.eps
        add_norm, turn = self._between.add_norm, self._between.turn
        multiply, gate = (self._by_torch, self._gated_by_torch) if in_prompt else (self._multiplied, self._gated)
        x, parts = self.embedded(ids), None
        for index, block in enumerate(self.blocks):
            normed = add_norm(x, parts, block.input_norm, eps)
            self.keep(index, x)
            keys, values = self.pool.keys[index], self.pool.values[index]
            queries = turn(multiply(normed, block.qkv), turns, block.query_norm, keys, values, where, eps)
            normed = add_norm(x, multiply(look(index, queries), block.out), block.inner_norm, eps)
            parts = multiply(gate(normed, block), block.down)
        add_norm(x, parts, self.norm, eps)
        self.keep(self.shape.layers, x)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """float32."""
        found = self._multiplied(self._between.add_norm(x, None, self.norm, self.shape.eps), self.head)
        return found[0] if len(found) == 1 else found.sum(0)

    def embedded(self, ids: Tensor) -> Tensor:
        if isinstance(self.embedding, GroupedMatrix):
            rows: Tensor = self._groups.rows_of(self.embedding, ids, self.dtype)
            return rows
        return super().embedded(ids)

    def scored(self, x: Tensor) -> Tensor:
        """By torch, but for weights whose numbers it would have to make each time."""
        return self._multiplied(x, self.head).sum(0) if isinstance(self.head, GroupedMatrix) else super().scored(x)

    def _multiplied(self, x: Tensor, matrix: Matrix) -> Tensor:
        found: Tensor
        if isinstance(matrix, GroupedMatrix):
            found = self._groups.multiply(x, matrix, self._gpu)
        else:
            found = self._linear.multiply(x, matrix.weight, matrix.bias, self._gpu)
        return found

    def _gated(self, x: Tensor, block: Block) -> Tensor:
        found: Tensor
        matrix = block.gate_up
        if isinstance(matrix, GroupedMatrix):
            found = self._groups.multiply_gated(x, matrix, self._gpu)
        else:
            found = self._linear.multiply_gated(x, matrix.weight, matrix.bias, self._gpu)
        return found

    def _by_torch(self, x: Tensor, matrix: Matrix) -> Tensor:
        """In one part."""
        if not isinstance(matrix, GroupedMatrix):
            return matrix.multiply(x)[None]
        numbers: Tensor = self._groups.numbers(matrix, x.dtype)
        return functional.linear(x, numbers, matrix.bias)[None]

    def _gated_by_torch(self, x: Tensor, block: Block) -> Tensor:
        gate, up = self._by_torch(x, block.gate_up)[0].chunk(2, 1)
        return functional.silu(gate).mul_(up)


def gpu_body(weights: DecoderWeights, pool: KVPool, positions: int, exact: bool) -> TorchBody:
    """By Triton; by torch where there is no Triton, or where its kernels do not compute what torch does."""
    try:
        from actors.engines.decoder.gpu.triton_kernels import between, gpu, groups, linear
    except ImportError:
        log.info("decode rounds use torch's kernels, which is slower: Triton is not installed")
        return TorchBody(weights, pool, positions, exact)

    def made() -> TritonBody:
        return TritonBody(weights, pool, positions, exact, Kernels(linear, groups, between, gpu.gpu_of(pool.device)))

    body = checked(made, error_of, CLOSE)
    if not isinstance(body, str):
        return body
    log.warning("decode rounds use torch's kernels, which is slower: Triton's layers failed (%s)", body)
    return TorchBody(weights, pool, positions, exact)


@torch.inference_mode()
def error_of(body: TritonBody) -> float:
    """The relative difference of the logits to torch's, of three rows with random attention."""
    shape, pool, device = body.shape, body.pool, body.device
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(len(body.embedding.weight), (3,), generator=chance).to(device)
    angles = torch.rand(3, shape.width // 2, generator=chance).to(device)
    turns = torch.polar(torch.ones_like(angles), angles)
    where = torch.arange(pool.slots, pool.slots + 3, device=device)  # spare ones
    group = shape.heads // shape.kv_heads

    def look(layer: int, queries: Tensor) -> Tensor:
        keys, values = (
            part.index_select(1, where).transpose(0, 1).repeat_interleave(group, 1)
            for part in (pool.keys[layer], pool.values[layer])
        )
        seen: Tensor = (values + 0.1 * (queries + keys)).reshape(3, -1)
        return seen

    rows, states = TorchBody.embedded(body, ids), TorchBody.layers(body, ids, turns, where, look)
    exact = TorchBody.scored(body, body._rms(states, body.norm)).float()
    found = [body.logits(body.layers(ids, turns, where, look, in_prompt)) for in_prompt in (False, True)]
    pairs = [(body.embedded(ids), rows), *((each, exact) for each in found)]
    return max(float((each - right).norm() / right.norm()) for each, right in pairs)
