"""Engines of a GPU whose rounds are recorded, on a CPU. A tape stands for a CUDA graph: it holds every operation with
the Python values and the memory of its recording (see tape.py). :class:`Attention` stands for Triton's kernels."""

import random

import numpy as np
import torch

from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.decoder.gpu.graphs import Graphs
from actors.engines.decoder.gpu.in_place import InPlace
from actors.engines.flat_batch import FlatBatch, align, causal
from actors.tree.accept import depths_of
from tests.engines.tape import TapeRecorder
from tests.engines.test_llama import SLOTS, ids
from tests.engines.tiny import VOCAB, info, make

TEXTS = {base: ids(n, seed=base) for base, n in ((64, 30), (448, 250), (1024, 118), (1472, 500))}


class Attention:
    """:mod:`actors.engines.decoder.gpu.triton_kernels.attention` in torch's operations: of what a row is told."""

    SPLIT = 64

    @staticmethod
    def tile_rows(heads, kv_heads):
        return 4

    @staticmethod
    def Partial(*sizes):
        return None

    @staticmethod
    def attend(query, pool, numbers, partial, spec, sinks, *_):
        (keys, values), (_, _, bases, prefixes, lengths, tails, _) = pool, numbers
        at = torch.arange(keys.shape[1], device=keys.device)[None]
        tail = tails.gather(1, (at - prefixes[:, None]).clamp(0, tails.shape[1] - 1))
        slots = torch.where(at < prefixes[:, None], bases[:, None] + at, tail)
        seen = at < lengths[:, None]
        slots = torch.where(seen, slots, torch.zeros_like(slots))
        group = query.shape[1] // len(keys)
        keys, values = (
            part.index_select(1, slots.flatten()).view(len(part), *slots.shape, -1).repeat_interleave(group, 0)
            for part in (keys, values)
        )
        scores = torch.einsum("rhw,hrnw->hrn", query, keys).float().mul(spec.scale)
        if spec.cap:
            scores = spec.cap * torch.tanh(scores / spec.cap)
        if spec.window:
            last = lengths[:, None] - 1
            seen &= at >= (last // spec.window * spec.window if spec.chunked else last - spec.window + 1)
        scores = scores.masked_fill(seen.logical_not(), -1e30)
        if sinks is not None:
            taken = sinks.float().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, taken], 2)
        weights = scores.softmax(-1)[..., : at.shape[1]]
        return torch.einsum("hrn,hrnw->rhw", weights.to(values.dtype), values).flatten(1)


def recorded(family="llama", slots=SLOTS, recorder=None, dtype=torch.float32) -> GpuEngine:
    model = make(family).to(dtype)
    return with_graphs(GpuEngine(model, info(model), slots), recorder or TapeRecorder())


def with_graphs(engine: GpuEngine, recorder) -> GpuEngine:
    layout = InPlace(engine._program.spec, engine.pool, engine._exact, Attention, None)
    engine.graphs = Graphs(engine._program, recorder, VOCAB, layout)
    return engine


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


def tree_round(engine, base: int, length: int, tokens, parents, state=None) -> torch.Tensor:
    """``state``: of the text, where layers are recurrent."""
    batch = FlatBatch()
    lay_out(batch, base, length, tokens, parents)
    batch.segments[0].state = state
    batch.segments[0].parents = [-1, *(parent + 1 for parent in parents)]
    return engine.forward(batch)


def together(engine, parts) -> torch.Tensor:
    """One forward of trees ``(base, length, tokens, parents)``."""
    batch = FlatBatch()
    for part in parts:
        lay_out(batch, *part)
    return engine.forward(batch)


def some_trees(chance: random.Random, bases, most: int):
    for base in bases:
        parents = [chance.randrange(-1, node) for node in range(chance.randrange(most))]
        yield base, len(TEXTS[base]), [TEXTS[base][-1], *(chance.randrange(VOCAB) for _ in parents)], parents


def fill(engine, base: int, tokens) -> None:
    places, batch = range(len(tokens)), FlatBatch()
    batch.add(base, tokens, places, [base + p for p in places], causal(0, len(tokens)))
    engine.forward(batch, [len(tokens) - 1])
