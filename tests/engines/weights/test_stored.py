"""At a second start weights come out of the files, and are those that transformers loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actors.engines.build import _engine, _How
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.weights.loading import describe, load_for_engine, load_tokenizer
from actors.engines.weights.stored import StoredModel
from protocols.errors import ModelError

PAIR = Path(__file__).parents[3] / "duoactor" / "pair"
CPU = torch.device("cpu")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUOACTOR_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(PAIR / "target", tmp_path / "target")


def logits(model: Any, directory: Path) -> torch.Tensor:
    info = describe(str(directory), model, load_tokenizer(str(directory)), CPU, "float32")
    batch = FlatBatch()
    batch.add(0, [5, 6, 7], [0, 1, 2], [0, 1, 2], causal(0, 3))
    return _engine(model, info, 512, _How(exact=True)).forward(batch).clone()


def test_a_second_start_takes_the_weights_out_of_the_files_and_computes_the_same(target: Path):
    first, second = (load_for_engine(str(target), CPU, torch.float32) for _ in range(2))
    assert not isinstance(first, StoredModel) and isinstance(second, StoredModel)
    described = [describe(str(target), one, load_tokenizer(str(target)), CPU, "float32") for one in (first, second)]
    assert described[0] == described[1]
    assert torch.equal(logits(first, target), logits(second, target))


def test_another_checkpoint_in_the_same_place_is_read_as_a_whole_again(target: Path):
    load_for_engine(str(target), CPU, torch.float32)
    weights = load_file(target / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="1 weights are missing"):
        load_for_engine(str(target), CPU, torch.float32)


def test_a_tensor_that_the_configuration_does_not_ask_for_stays_unread(target: Path):
    weights = load_file(target / "model.safetensors")
    weights["model.rotary_emb.inv_freq"] = torch.zeros(32)  # as old checkpoints have it
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    first, second = (load_for_engine(str(target), CPU, torch.float32) for _ in range(2))
    assert isinstance(second, StoredModel) and "model.rotary_emb.inv_freq" not in second.source
    assert torch.equal(logits(first, target), logits(second, target))
