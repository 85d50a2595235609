"""Engines whose rounds are recorded, beside the same ones that are not, and rounds for them. A tape stands in for CUDA
graphs: it holds every operation with the Python values and the memory of its recording (see tape.py)."""

import numpy as np
import pytest
import torch

from actors.engines.decoder import engine as fused
from actors.engines.decoder.engine import LlamaEngine
from actors.engines.flat_batch import FlatBatch, align, causal
from actors.tree.accept import depths_of
from tests.engines.tape import TapeRecorder
from tests.engines.test_llama import BUNDLED, SLOTS, load
from tests.engines.tiny import info, make

MODELS = [("bundled", torch.float32), ("qwen3", torch.bfloat16), ("qwen2", torch.bfloat16)]


@pytest.fixture(autouse=True)
def torch_alone(monkeypatch):
    """What is recorded are torch's operations; compiled kernels have bits of their own."""
    torch.set_num_threads(1)
    monkeypatch.setattr(fused, "compiled_kernels", lambda: None)


def pair_of(name: str, dtype: torch.dtype, slots: int = 2048) -> list[LlamaEngine]:
    """A model as it runs on a CPU, and the same one recorded."""
    engines = []
    for recorder in (None, TapeRecorder()):
        model = load("target", dtype) if name == "bundled" else make(name).to(dtype)
        details = BUNDLED if name == "bundled" else info(model)
        engines.append(LlamaEngine(model, details, slots, recorder=recorder))
    return engines


def recorded(family="llama", slots=SLOTS, recorder=None) -> LlamaEngine:
    model = make(family)
    return LlamaEngine(model, info(model), slots, recorder=recorder or TapeRecorder())


def lay_out(batch: FlatBatch, base: int, length: int, tokens, parents) -> None:
    """The root at ``length - 1`` and a tree behind it, as the target lays them out."""
    root, rows = length - 1, 1 + len(parents)
    visible = np.zeros((rows, align(root + rows)), dtype=bool)
    visible[:, :length] = True
    for row, parent in enumerate(parents, 1):
        visible[row, length:] = visible[parent + 1, length:]
        visible[row, root + row] = True
    positions = [root, *(root + depth for depth in depths_of(parents))]
    slots = list(range(base + root, base + root + rows))
    batch.add(base, tokens, positions, slots, visible)


def tree_round(engine, base: int, length: int, tokens, parents) -> torch.Tensor:
    lay_out(batch := FlatBatch(), base, length, tokens, parents)
    return engine.forward(batch)


def fill(engine, base: int, tokens) -> None:
    places, batch = range(len(tokens)), FlatBatch()
    batch.add(base, tokens, places, [base + p for p in places], causal(0, len(tokens)))
    engine.forward(batch, [len(tokens) - 1])
