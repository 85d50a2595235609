"""Weights in small groups as a GPU reads them: the numbers of their file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from actors.engines.decoder.gpu.groups import GroupedMatrix, Groups, _sent
from actors.engines.weights.blocks import Blocks
from actors.engines.weights.formats import FORMS, KINDS
from actors.engines.weights.gguf import Stored
from actors.engines.weights.gguf_models import FileWeight
from actors.engines.weights.loading import load_for_engine
from actors.engines.weights.matrix import Matrix
from actors.engines.weights.source import StoredSource
from actors.engines.weights.stored import StoredModel
from tests.engines.weights.test_grouped import CODES, INPUTS, rounded, stored

CPU, WRITERS = torch.device("cpu"), Path(__file__).parents[1] / "data" / "writers"
SMALL = [kind.name for kind in KINDS.values() if kind.form and kind.elements == 32]  # rows may fill no four groups


def groups_of(matrix: Stored, order: np.ndarray | None = None) -> Groups:
    return Groups.of(matrix, order, CPU)


def cut_off(matrix: Stored, inputs: int) -> Stored:
    """The first inputs of a file's matrix."""
    data = matrix.rows[:, : matrix.kind.bytes_of(inputs)]
    return Stored(matrix.name, (matrix.shape[0], inputs), matrix.kind, np.ascontiguousarray(data).reshape(-1))


@pytest.mark.parametrize("name", CODES)
def test_the_numbers_of_a_file_come_back(name: str) -> None:
    matrix = stored(name, 70)
    found, values = groups_of(matrix), matrix.values()
    own = found.values(slice(None))
    near = 2**-10 * np.abs(values).max() if FORMS[found.number - 1].scaled else 0.0  # scales are, to float16
    np.testing.assert_allclose(own.numpy(), values, rtol=0, atol=near)
    rows, order = torch.tensor([69, 3, 3]), np.random.default_rng(1).permutation(70)
    assert torch.equal(found.values(rows), own[rows])
    assert torch.equal(groups_of(matrix, order).values(slice(None)), own[torch.from_numpy(order)])
    source = StoredSource("a model", {"weight": FileWeight([matrix])}, torch.bfloat16, torch.device("cuda"))
    assert found.nbytes == source.nbytes


@pytest.mark.parametrize("name", SMALL)
def test_the_last_groups_may_fill_up(name: str) -> None:
    matrix = cut_off(stored(name, 40), 96)  # three groups, of which four stand together
    np.testing.assert_array_equal(groups_of(matrix).values(slice(5, 30)).numpy(), matrix.values()[5:30])


def test_parts_of_several_forms_are_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.engines.decoder.gpu.groups.PIECE", 20 * INPUTS)  # in several pieces
    parts = [stored("Q4_K", 48, 1), stored("Q6_K", 33, 2), stored("Q6_K", 20, 4), stored("Q8_0", 40, 3)]
    chance = torch.Generator().manual_seed(0)
    bias, x = torch.randn(141, generator=chance), torch.randn(3, INPUTS, generator=chance)
    matrix = GroupedMatrix.of(Blocks([(part, None) for part in parts]), bias, CPU)
    weights = torch.cat([groups_of(part).values(slice(None)) for part in parts])
    assert [part.outputs for part in matrix.parts] == [48, 53, 40]
    assert matrix.weight.shape == weights.shape and matrix.nbytes == sum(groups_of(part).nbytes for part in parts)
    torch.testing.assert_close(matrix.multiply(x), torch.nn.functional.linear(x, weights, bias))
    torch.testing.assert_close(matrix.inputs(x), torch.from_numpy(rounded(x.numpy())))  # as on a CPU


@pytest.mark.parametrize(
    "name", ["ct-experts", "ct-experts-fp8", "ct-experts-nvfp4", "gptq-experts", "modelopt-nvfp4-experts"]
)
def test_experts_that_are_stored_apart_are_sent_as_they_are(name: str) -> None:
    model = load_for_engine(str(WRITERS / name / "model"), CPU, torch.float32)
    assert isinstance(model, StoredModel)
    source = model.source
    for end in ("gate_up_proj", "down_proj"):
        source.device, full = CPU, f"model.layers.0.mlp.experts.{end}"
        assert (source.blocks(full) is None) is ("fp" in name)  # a CPU computes with their numbers
        whole = source.take(full)
        source.device = torch.device("cuda")
        for blocks, right in zip(source.blocks(full) or [], whole, strict=True):
            found = _sent(Matrix.of_blocks(blocks), CPU).rows(torch.arange(len(right)), torch.float32)
            torch.testing.assert_close(found, right, rtol=2e-3, atol=1e-4)
