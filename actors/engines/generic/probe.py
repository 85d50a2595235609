"""Whether a model's logits stay the same over slots."""

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
        """Whether the engine computes the same."""
        end = len(self._tokens)
        half = end // 2
        with narrow_windows(self._model, self._config):
            found = torch.cat([self._rows(0, half), self._rows(half, end)])
        return self._agree(found, self._expected)

    def _rows(self, start: int, end: int) -> Tensor:
        places, batch = [*range(start, end)], FlatBatch()
        visible = np.tri(end - start, end, start, dtype=np.bool_)
        batch.add(0, self._tokens[start:end], places, places, visible)
        return self._engine.forward(batch)

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
