"""The Llama family by hand: the same :class:`actors.engines.engine.Engine` as HFEngine in a fraction of its time.

With models that a CPU runs in a millisecond most of a transformers forward is Python and dispatch. Here a layer is some
twenty operations on fused matrices, and the matrices are read in half the bytes where that loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from actors.engines.engine import Segment
from actors.engines.fused_numpy import NumpyBody, quickest
from actors.engines.fused_torch import TorchBody
from actors.engines.fused_weights import supports, take_weights
from actors.engines.interface import ModelInfo
from actors.engines.pool import KVPool
from protocols.errors import ModelError

SMALL = 24_000_000  # weights up to which numpy is tried: beyond, arithmetic is the time
TURNS = 2048  # positions of the first rotation table; it doubles as texts grow

__all__ = ["FusedEngine", "supports"]


class FusedEngine:
    """See :class:`actors.engines.engine.Engine`. One forward at a time; not thread-safe."""

    def __init__(self, model: nn.Module, info: ModelInfo, slots: int, int8: bool = False, exact: bool = True) -> None:
        """Takes the weights out of a ``transformers`` model of a configuration that :func:`supports` accepts; the
        model is spent. Device and dtype are the model's.

        ``exact``: the bits of a row depend neither on the rows beside it (up to 64) nor on the span, and the kernels
        are the same at every start: for a target. Otherwise the quickest are used: for a draft. ``int8``: weights of
        a draft on a CPU.
        """
        if not supports(model.config):
            raise ModelError(f"model {info.model_id} is not of the Llama family as the fused decoder knows it; use HFEngine")
        if int8 and exact:
            raise ModelError("int8 changes the model, so it is for draft models only; choose float32 or bfloat16")
        self.info = info
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        weights = take_weights(model)
        shape = weights.shape
        self.pool = KVPool(shape.layers, shape.kv_heads, shape.width, slots, self.dtype, self.device)
        self._weights = weights
        self._turns = weights.turns(TURNS)
        self._body: TorchBody | NumpyBody = TorchBody(weights, self.pool, self.dtype, int8, exact)
        small = weights.count() <= SMALL and self.dtype == torch.float32 and self.device.type == "cpu"
        if small and not exact:
            self._choose(NumpyBody(weights, self.pool, int8))
        weights.spend()

    @torch.inference_mode()
    def forward(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        segments: Sequence[Segment],
        select: Sequence[int] | None = None,
    ) -> Tensor:
        self.pool.positions[np.asarray(slots)] = positions
        last = max(positions)
        if last >= len(self._turns):
            self._turns = self._weights.turns(1 << last.bit_length())
        at = torch.tensor(positions, dtype=torch.int64, device=self.device)
        return self._body.run(tokens, self._turns.index_select(0, at), slots, segments, select)

    def _choose(self, other: NumpyBody) -> None:
        """Keep the body that is quicker for one row and for four; the pool's slots must not be in use."""
        span = min(320, self.pool.slots)
        took: list[float] = []
        bodies = (self._body, other)
        for body in bodies:
            self._body = body
            took.append(sum(quickest(lambda n=n: self._try(n, span)) for n in (1, 4)))
        self._body = bodies[took.index(min(took))]

    def _try(self, rows: int, span: int) -> None:
        places = range(min(rows, span))
        visible = np.ones((len(places), span), dtype=np.bool_)
        self.forward([0] * len(places), places, places, [Segment(len(places), 0, span, visible)])
