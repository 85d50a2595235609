from pathlib import Path

import pytest
import torch

from actors.engines.targets.selfcheck import ROWS, self_check
from actors.engines.targets.target import Target
from actors.engines.weights.loading import describe, load_model, load_tokenizer
from tests.engines.tiny import info, make, torch_engine

PAIR = Path(__file__).parents[2] / "duoactor" / "pair"
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_speculation_on_the_bundled_target_is_bit_exact_for_every_number_of_rows_that_agrees(dtype):
    torch.set_num_threads(1)
    path = str(PAIR / "target")
    model = load_model(path, CPU, dtype)
    engine = torch_engine(model, describe(path, model, load_tokenizer(path), CPU, str(dtype)), 256)
    found = self_check(engine)
    if dtype == torch.float32:
        assert set(ROWS) <= set(found.rows)
    assert len(found.rows) >= 4 and found.branches


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_branches_of_a_small_model_in_float16_have_the_bits_of_plain_decoding(family):
    model = make(family).half()
    engine = torch_engine(model, info(model), 1024)
    assert self_check(engine).branches and Target(engine).branches


def test_the_check_finds_a_row_count_that_differs():
    model = make("llama")
    engine = torch_engine(model, info(model), 256)
    honest = engine.forward

    def flawed(batch):
        out = honest(batch)
        return out + 1e-7 * (len(batch.tokens) == 6) * out.abs()

    engine.forward = flawed
    assert 6 not in self_check(engine).rows


def test_the_check_finds_branches_that_differ():
    model = make("llama")
    assert not self_check(torch_engine(model, info(model), 512, exact=False)).branches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_branches_differ_windows_have_none(dtype):
    model = make("llama").to(dtype)
    engine = torch_engine(model, info(model), 512)
    honest = engine.forward

    def flawed(batch):
        return honest(batch) * (1.0 if len(set(batch.positions)) == len(batch.positions) else 1.01)

    engine.forward = flawed
    assert not Target(engine).branches
