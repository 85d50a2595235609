"""What a draft head has of a compiled engine: its kept states, embeddings, last norm, and products by its team.

numba compiles nothing of this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.engines.compute.ops_torch import TorchOps
from actors.engines.decoder.cpu.panels import Panels
from actors.engines.decoder.layout import DecoderWeights
from actors.engines.engine import PerRow, Trunk
from actors.engines.weights.matrix import Matrix


class CompiledTrunk:
    """States that an engine keeps, and what a head may compute with its weights."""

    def __init__(self, weights: DecoderWeights, team: Any, head: Panels) -> None:
        """``head``: as ``team`` multiplies it."""
        self._spec, self._team = weights.spec, team
        self._norm, self._table, self._vocabulary = weights.norm, weights.embedding, weights.vocabulary
        self._head = head
        self.places: NDArray[np.int64] = np.empty(0, np.int64)  # by layer, see ``BODY``
        self.count = 0
        self.states: NDArray[np.float32] = np.empty((0, 0), np.float32)

    def tap(self, layers: Sequence[int]) -> dict[str, int]:
        """What the engine is to be told, see :meth:`actors.engines.engine.Engine.tap`."""
        self.places = np.full(len(self._spec.layers) + 1, -1, np.int64)
        self.places[list(layers)] = range(len(layers))
        self.count = len(layers)
        return {"taps": self.places.ctypes.data, "kept": self.count}

    def room(self, rows: int) -> int:
        """The address of room for the states of a forward."""
        self.states = np.empty((rows, self.count * self._spec.hidden), np.float32)
        return self.states.ctypes.data

    def trunk(self) -> Trunk:
        spec, cpu = self._spec, torch.device("cpu")
        table = self._table.weight
        if self._table.blocks is not None:
            table = torch.from_numpy(self._table.blocks.values()).bfloat16()
        scale, ops = spec.embedding_scale, TorchOps(spec.norm, torch.float32, 0)

        def embed(ids: Tensor) -> Tensor:
            return table[ids].float() * scale

        return Trunk(
            *(spec.hidden, len(spec.layers), self._vocabulary, cpu, torch.float32),
            *(embed, lambda x: ops.norm(x, self._norm), self._logits, self._linear),
        )

    def _logits(self, x: Tensor) -> Tensor:
        logits = _multiplied(self._head, x * self._spec.logit_scale)
        cap = self._spec.logit_cap
        return logits if cap == 0 else cap * torch.tanh(logits / cap)

    def _linear(self, weight: Tensor) -> PerRow:
        return partial(_multiplied, Panels(Matrix(weight), self._team))


def _multiplied(panels: Panels, x: Tensor) -> Tensor:
    return torch.from_numpy(panels.multiply(x.float().contiguous().numpy()))
