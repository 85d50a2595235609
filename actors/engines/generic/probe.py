"""Whether a model's logits stay the same over slots, and what its recurrent layers can do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from actors.engines.engine import Engine
from actors.engines.flat_batch import FlatBatch
from actors.engines.generic.recurrence import GenericRecurrence, GenericState

TOKENS = 24
NARROW = 6  # tokens of a window while a probe runs: its text reaches beyond, on both sides of its cut
SUMS = 0.001  # part of the logits by which sums of products may differ that are added in another order
# What a mixture of experts adds to the noise of roundings. Of 47 families in bfloat16, tiny, with 3 and 12 layers,
# mixtures have at most twice that noise, others 0.8 of it; PhiMoE and Doge, which run wrong, 19 times it and more.
EXPERTS = 4.0
COUNTS = {"max_window_layers"}  # numbers of layers, not of tokens


class Probe:
    """A text of a few tokens, computed by transformers alone and by an engine. Made before the model is changed.

    The engine computes its first half as a prompt and the rest behind it, as rows of a window, so that positions and
    attention must be right behind a prefix. Sliding windows are narrow meanwhile, so that they must be right too.
    """

    def __init__(self, engine: Engine, model: nn.Module, config: Any) -> None:
        """``model`` and ``config``: what the engine computes."""
        self._engine, self._model, self._config = engine, model, config
        self._tokens = [7919 * (i + 1) % engine.info.vocab_size for i in range(min(TOKENS, engine.pool.slots))]
        ids = torch.tensor([self._tokens], dtype=torch.int64, device=engine.device)
        with narrow_windows(model, config):
            self._expected: Tensor = model(input_ids=ids, use_cache=False).logits[0].float()

    def agrees(self) -> bool:
        """Whether the engine computes the same. With recurrent layers it finds out how those may be run."""
        recurrence, end = self._engine.recurrence, len(self._tokens)
        half = end // 2
        with narrow_windows(self._model, self._config):
            if isinstance(recurrence, GenericRecurrence):
                found = self._through(recurrence, half)
            else:
                found = torch.cat([self._rows(0, half), self._rows(half, end)])
        return self._agree(found, self._expected)

    def _through(self, recurrence: GenericRecurrence, half: int) -> Tensor:
        """The first half as a piece of a prompt, the rest as rows of a window. Also finds out whether the next piece of
        a prompt can start from a state."""
        state, end = recurrence.new(), len(self._tokens)
        begun = self._rows(0, half, state, prompt=True)
        state.keep(range(half))
        rest = self._rows(half, end, state)
        recurrence.rows_agree = bool((rest == self._siblings(half, state)).all())
        recurrence.continues = self._agree(self._rows(half, end, state, prompt=True), self._expected[half:])
        recurrence.stream_bytes = 2 * state.bytes
        return torch.cat([begun, rest])

    def _rows(self, start: int, end: int, state: GenericState | None = None, prompt: bool = False) -> Tensor:
        places, batch = [*range(start, end)], FlatBatch()
        visible = np.tri(end - start, end, start, dtype=np.bool_)
        segment = batch.add(0, self._tokens[start:end], places, places, visible)
        segment.state, segment.prompt = state, prompt
        return self._engine.forward(batch)

    def _siblings(self, start: int, state: GenericState) -> Tensor:
        """The logits of the tokens from ``start`` on, each but the first as one of three equal siblings."""
        rows = len(self._tokens) - start
        chain = [0, *range(1, 3 * rows - 3, 3)]
        parents = [-1, *(max(0, row // 3 * 3 - 2) for row in range(3 * rows - 3))]
        depths = [0, *(1 + row // 3 for row in range(3 * rows - 3))]
        count = len(parents)
        visible = np.zeros((count, start + count), dtype=np.bool_)
        visible[:, :start] = True
        for row, parent in enumerate(parents):
            visible[row, start:] = visible[parent, start:] if parent >= 0 else False
            visible[row, start + row] = True
        places, slots = [start + depth for depth in depths], [*range(start, start + count)]
        batch = FlatBatch()
        segment = batch.add(0, [self._tokens[place] for place in places], places, slots, visible)
        segment.state, segment.parents = state, parents
        return self._engine.forward(batch)[chain]

    def _agree(self, found: Tensor, expected: Tensor) -> bool:
        """Whether they differ by roundings only. Each layer adds to its rows twice, and each sum is rounded; roundings
        add up as steps of a random walk. ``EXPERTS``: some rows choose another expert by them."""
        steps = math.sqrt(2 * self._config.num_hidden_layers)
        tolerance = max(SUMS, EXPERTS * torch.finfo(self._engine.dtype).eps * steps)
        return bool((found - expected).norm() <= tolerance * expected.norm())  # False if there is a NaN


@contextmanager
def narrow_windows(model: nn.Module, config: Any) -> Iterator[None]:
    """Let every sliding window that the model and its configurations name see ``NARROW`` tokens at most."""
    configs = [one.config for one in model.modules() if hasattr(one, "config")]
    owners = {id(one): vars(one) for one in (config, *configs, *model.modules())}
    wide = [
        (fields, name, value)
        for fields in owners.values()
        for name, value in fields.items()
        if "window" in name and name not in COUNTS and type(value) is int and value > NARROW
    ]
    for fields, name, _ in wide:
        fields[name] = NARROW
    try:
        yield
    finally:
        for fields, name, value in wide:
            fields[name] = value
