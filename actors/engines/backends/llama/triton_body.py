"""The fused decoder's rounds by kernels of ours, for a GPU with Triton: nine launches a layer instead of eighteen, and
rows whose bits depend on no other row.

Prompts go through :class:`TorchBody`: they are long enough for torch's own kernels to be quicker.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from actors.engines.backends.linear.layers import Linear, Matrix
from actors.engines.backends.llama.torch_body import Look, TorchBody

log = logging.getLogger("duoactor.engines")
CLOSE = 0.1  # relative: 16 bits round differently through a deep model by a few hundredths, a fault by more than 1


class TritonRounds:
    """:class:`actors.engines.backends.llama.torch_body.Rounds`, with the weights and the pool of a ``TorchBody``."""

    def __init__(self, body: TorchBody, linear: Any, between: Any, gpu: Any) -> None:
        """``linear``, ``between``: the modules of :mod:`actors.engines.backends.triton_kernels`; ``gpu``: what their
        launches ask."""
        self._body, self._linear, self._between, self._gpu = body, linear, between, gpu

    @torch.inference_mode()
    def decode(self, ids: Tensor, turns: Tensor, where: Tensor, look: Look) -> Tensor:
        """float32 logits. The splits' sums of a layer's products are added up by what comes next."""
        body, eps, gpu = self._body, self._body.shape.eps, self._gpu
        add_norm, turn = self._between.add_norm, self._between.turn
        x, parts = body.embedding.index_select(0, ids), None
        for index, block in enumerate(body.blocks):
            normed = add_norm(x, parts, block.input_norm, eps, gpu)
            keys, values = body.pool.keys[index], body.pool.values[index]
            qkv = self._multiplied(normed, block.qkv)
            queries = turn(qkv, turns, block.query_norm, keys, values, where, eps, gpu)
            parts = self._multiplied(look(index, queries), block.out)
            normed = add_norm(x, parts, block.inner_norm, eps, gpu)
            gate_up = _matrix(block.gate_up)
            gated = self._linear.multiply_gated(normed, gate_up.weight, gate_up.bias, self._gpu)
            parts = self._multiplied(gated, block.down)
        found = self._multiplied(add_norm(x, parts, body.norm, eps, gpu), body.head)
        return found[0] if len(found) == 1 else found.sum(0)

    def _multiplied(self, x: Tensor, layer: Linear) -> Tensor:
        matrix = _matrix(layer)
        found: Tensor = self._linear.multiply(x, matrix.weight, matrix.bias, self._gpu)
        return found


def _matrix(layer: Linear) -> Matrix:
    assert layer.matrix is not None
    return layer.matrix


def triton_rounds(body: TorchBody) -> TritonRounds | None:
    """None where there is no Triton, or where its kernels do not compute what torch does."""
    try:
        from actors.engines.backends.triton_kernels import between, gpu, linear
    except ImportError:
        return None
    try:
        rounds = TritonRounds(body, linear, between, gpu.gpu_of(body.device))
        wrong = error_of(rounds, body)
    except Exception as error:  # of a compiler: it may be any
        wrong, reason = float("inf"), str(error).partition("\n")[0]
    else:
        reason = f"off by {wrong:.3g}"
    if not wrong < CLOSE:
        log.warning("decode rounds use torch's kernels, which is slower: Triton's layers failed (%s)", reason)
        return None
    return rounds


@torch.inference_mode()
def error_of(rounds: TritonRounds, body: TorchBody) -> float:
    """The relative difference of the logits to torch's, of three rows that attend to nothing but their own values."""
    shape, pool = body.shape, body.pool
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(len(body.embedding), (3,), generator=chance).to(body.device)
    angles = torch.rand(3, shape.width // 2, generator=chance).to(body.device)
    where = torch.arange(pool.slots, pool.slots + 3, device=body.device)  # spare ones
    group = shape.heads // shape.kv_heads

    def look(layer: int, queries: Tensor) -> Tensor:
        values = pool.values[layer].index_select(1, where).transpose(0, 1).repeat_interleave(group, 1)
        keys = pool.keys[layer].index_select(1, where).transpose(0, 1).repeat_interleave(group, 1)
        return (values + 0.1 * (queries + keys)).reshape(3, -1)

    turns = torch.polar(torch.ones_like(angles), angles)
    found, exact = (each.decode(ids, turns, where, look).float() for each in (rounds, body))
    return float((found - exact).norm() / exact.norm())
