"""The program of every description in torch: transformers' logits, the compiled twin's, and those of a branch alone."""

import numpy as np
import pytest
import torch

from actors.engines.cache.pool import KVPool
from actors.engines.compute.layer import Program
from actors.engines.compute.ops_torch import TorchOps
from actors.engines.compute.rows import BatchRows
from actors.engines.compute.sight import PoolSight
from actors.engines.compute.states import recurrence_of
from actors.engines.decoder.configuration import spec_of
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.cpu.rings import kv_shapes
from actors.engines.decoder.layout import lay_out
from actors.engines.flat_batch import SPAN, FlatBatch, align, causal
from actors.engines.weights.source import source_of
from tests.engines.families import described, model_of
from tests.engines.tiny import info

LENGTH, BASE, SLOTS = 60, 64, 512
IDS = [2 + (7 * i * i + 3 * i) % 150 for i in range(LENGTH)]
PIECES = ((20, True), (5, False), (1, False), (30, True), (4, False))  # rows, and whether they are a prompt's


class TorchText:
    """A text whose rows the program in torch computes."""

    def __init__(self, model) -> None:
        spec = spec_of(model.config).in_context(info(model).max_context)
        weights = lay_out(spec, source_of(model))
        self.pool = KVPool(kv_shapes(spec, False)[0], SLOTS, torch.float32, "cpu", SPAN)
        self.recurrence = recurrence_of(spec.recurrent, torch.device("cpu"))
        self.program = Program(weights, self.pool, TorchOps(spec.norm, torch.float32, SLOTS), self.recurrence)
        self.state = None if self.recurrence is None else self.recurrence.new()

    def run(self, batch: FlatBatch) -> torch.Tensor:
        for segment in batch.segments:
            segment.state = self.state
        ids, positions, slots = (torch.tensor(each) for each in (batch.tokens, batch.positions, batch.slots))
        walk = None if self.recurrence is None else self.program.walk(self.recurrence.index(batch.segments).to("cpu"))
        rows = BatchRows(ids, positions, self.pool, slots, PoolSight(self.pool, batch, True), walk)
        logits = self.program.logits(self.program.run_layers(rows))
        if self.recurrence is not None:
            self.recurrence.computed()
        return logits

    def keep(self, path) -> None:
        if self.state is not None:
            self.state.keep(path)


class CompiledText:
    def __init__(self, model) -> None:
        self.engine = CompiledEngine(model, info(model), SLOTS)
        self.state = None if self.engine.recurrence is None else self.engine.recurrence.new()

    def run(self, batch: FlatBatch) -> torch.Tensor:
        for segment in batch.segments:
            segment.state = self.state
        return self.engine.forward(batch).clone()

    def keep(self, path) -> None:
        if self.state is not None:
            self.state.keep(path)


def told(start: int, rows: int, prompt: bool) -> FlatBatch:
    batch, places = FlatBatch(), range(start, start + rows)
    batch.add(BASE, IDS[start : start + rows], [*places], [BASE + p for p in places], causal(start, start + rows))
    batch.segments[0].prompt = prompt
    return batch


def forked(start: int) -> FlatBatch:
    """Two branches behind the text: three wrong tokens, and then its own next three."""
    visible = np.zeros((6, align(start + 6)), dtype=bool)
    visible[:, :start] = True
    for row in range(6):
        visible[row, start + row // 3 * 3 : start + row + 1] = True
    batch = FlatBatch()
    tokens, positions = [9] * 3 + IDS[start : start + 3], [*range(start, start + 3)] * 2
    batch.add(BASE, tokens, positions, [*range(BASE + start, BASE + start + 6)], visible)
    batch.segments[0].parents = (-1, 0, 1, -1, 3, 4)
    return batch


@pytest.mark.parametrize("name", described())
@torch.inference_mode()
def test_a_description_has_one_text_by_transformers_by_torch_and_compiled(name):
    torch.set_num_threads(1)
    model = model_of(name)
    plain = model(torch.tensor([IDS]), use_cache=False).logits[0].float()
    texts = [TorchText(model_of(name)), CompiledText(model)]
    start, found = 0, ([], [])
    for rows, prompt in PIECES:
        if start == LENGTH - 4:
            branches = [text.run(forked(start))[3:] for text in texts]
        for text, logits in zip(texts, found, strict=True):
            logits.append(text.run(told(start, rows, prompt)))
            text.keep(range(rows))
        start += rows
    by_torch, compiled = map(torch.cat, found)
    size = plain.norm()
    assert (by_torch - plain).norm() < 1e-5 * size and (compiled - plain).norm() < 1e-5 * size
    assert (by_torch - compiled).norm() < 1e-5 * size
    for branch, logits in zip(branches, (by_torch, compiled), strict=True):
        assert (branch - logits[LENGTH - 4 : LENGTH - 1]).norm() < 1e-5 * size
    assert torch.equal(branches[1], compiled[LENGTH - 4 : LENGTH - 1])


@torch.inference_mode()
def test_rows_behind_the_last_position_of_a_table_change_nothing_before_it():
    """A window of drafts may reach behind the longest text; what it finds there is thrown away."""
    model = model_of("OPT", max_position_embeddings=LENGTH)
    plain = model(torch.tensor([IDS]), use_cache=False).logits[0].float()
    for text in (TorchText(model_of("OPT", max_position_embeddings=LENGTH)), CompiledText(model)):
        text.run(told(0, LENGTH - 2, True))
        batch, places = FlatBatch(), range(LENGTH - 2, LENGTH + 2)
        tokens, slots = [*IDS[-2:], 3, 4], [BASE + place for place in places]
        batch.add(BASE, tokens, [*places], slots, causal(LENGTH - 2, LENGTH + 2))
        logits = text.run(batch)
        assert (logits[:2] - plain[-2:]).norm() < 1e-5 * plain[-2:].norm() and logits.isfinite().all()


@torch.inference_mode()
def test_a_head_is_found_by_the_name_that_it_had_in_earlier_versions_of_transformers():
    model = model_of("GPTNeoX")
    plain = model(torch.tensor([IDS[:20]]), use_cache=False).logits[0].float()
    model.embed_out = model.lm_head
    del model.lm_head
    assert (TorchText(model).run(told(0, 20, True)) - plain).norm() < 1e-5 * plain.norm()
