"""Weights of a model that are made of several tensors of a GGUF file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def as_it_is(weight: Floats) -> Floats:
    return weight


def keys_and_values(keys: Floats, values: Floats) -> Floats:
    """Heads one below the other, each its keys and then its values."""
    whole: Floats = np.concatenate([keys.swapaxes(1, 2), values], 1)
    return whole.reshape(-1, whole.shape[2])


def stacked(gate: Floats, up: Floats) -> Floats:
    return np.concatenate([gate, up], 1)


def woven(gate: Floats, up: Floats) -> Floats:
    """gpt-oss: gate and up side by side in the last dimension, inputs in the one before."""
    both: Floats = np.stack([gate, up], -1)
    if both.ndim == 3:
        return both.reshape(len(gate), -1)
    return np.ascontiguousarray(both.transpose(0, 2, 1, 3).reshape(len(gate), gate.shape[2], -1))


def below(*parts: Floats) -> Floats:
    """One below the other, which blocks are without being computed."""
    return np.concatenate(parts)


def swapped(weight: Floats) -> Floats:
    return np.ascontiguousarray(weight.swapaxes(1, 2))
