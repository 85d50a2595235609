"""Layers with sliding windows in the compiled decoder: the plain model's logits, and every row's bits its own."""

import numpy as np
import pytest
import torch

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.flat_batch import FlatBatch, align, causal
from tests.engines.families import model_of
from tests.engines.tiny import info

LENGTH = 200  # several blocks of attention behind a window of nine tokens
IDS = [2 + (7 * i * i + 3 * i) % 150 for i in range(LENGTH)]


@pytest.fixture(scope="module", params=["Gemma3", "Gemma2", "Cohere2", "Mistral"])
def both(request):
    """An engine, and the plain model's logits."""
    torch.set_num_threads(1)
    model = model_of(request.param)
    with torch.inference_mode():
        plain = model(torch.tensor([IDS]), use_cache=False).logits[0].float()
    engine = CompiledEngine(model, info(model), 1024)
    return engine, plain


def rows_of(engine: CompiledEngine, base: int, start: int, rows: int) -> torch.Tensor:
    batch, places = FlatBatch(), range(start, start + rows)
    batch.add(base, IDS[start : start + rows], [*places], [base + p for p in places], causal(start, start + rows))
    return engine.forward(batch).clone()


def by_rows(engine: CompiledEngine, base: int, pieces: list[int]) -> torch.Tensor:
    found, start, turn = [], 0, 0
    while start < LENGTH:
        rows = min(LENGTH - start, pieces[turn % len(pieces)])
        found.append(rows_of(engine, base, start, rows))
        start, turn = start + rows, turn + 1
    return torch.cat(found)


def test_rows_have_the_plain_models_logits_and_the_same_bits_in_pieces_of_any_size(both):
    engine, plain = both
    alone = by_rows(engine, 0, [1])
    torch.testing.assert_close(alone, plain, atol=2e-4, rtol=2e-3)
    assert torch.equal(by_rows(engine, 256, [1, 2, 5, 8, 9, 40, 64]), alone)


def test_a_branch_behind_wrong_nodes_has_the_bits_of_plain_decoding(both):
    engine, _ = both
    alone, start = by_rows(engine, 0, [1]), LENGTH - 6
    visible = np.zeros((8, align(LENGTH + 8)), dtype=bool)
    visible[:, :start] = True
    for row in range(8):
        visible[row, start + row // 4 * 4 : start + row + 1] = True
    batch = FlatBatch()
    tokens, positions = [9] * 4 + IDS[start : start + 4], [*range(start, start + 4)] * 2
    batch.add(0, tokens, positions, [*range(start, start + 8)], visible)
    assert torch.equal(engine.forward(batch)[4:], alone[start : start + 4])
