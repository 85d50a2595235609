"""Matrices of bfloat16 in 12 bits: nothing is lost, and a row's bits are those of the same matrix in 16 bits."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from actors.engines.decoder.cpu import laid_out
from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.decoder.cpu.formats import HAS_TWELVE, PANEL, TABLE
from actors.engines.decoder.cpu.records import ESCAPE
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.weights import panels, twelve_bits
from actors.engines.weights.layers import Matrix
from actors.engines.weights.panels import Panels
from actors.engines.weights.twelve_bits import CODES, split
from tests.engines.tiny import info, make

pytestmark = pytest.mark.skipif(not HAS_TWELVE, reason="this processor reads 16 bits")


def trained(outputs: int, inputs: int) -> torch.Tensor:
    """Normal weights, of which some have exponents far below the largest, or are 0."""
    chance = torch.Generator().manual_seed(outputs + inputs)
    weight = 0.02 * torch.randn(outputs, inputs, generator=chance)
    weight[torch.rand(outputs, inputs, generator=chance) < 0.003] *= 2.0**-14
    weight[torch.rand(outputs, inputs, generator=chance) < 0.01] = 0.0
    weight[0, :3] = torch.tensor([1e-40, -0.0, -1e-39])  # below the least normal number, and a zero with a sign
    return weight.bfloat16()


def without_twelve():
    kernels = compiled_kernels()
    return SimpleNamespace(**{**vars(kernels), "HAS_TWELVE": False})


@pytest.mark.parametrize("outputs, inputs", [(1, 1600), (40, 48), (72, 48), (144, 2200), (384, 1024)])
@pytest.mark.parametrize("helpers", [0, 2])
def test_every_rows_bits_are_those_that_sixteen_bits_give(outputs, inputs, helpers):
    kernels, weight = compiled_kernels(), trained(outputs, inputs).float()
    packed = Panels(Matrix(weight), kernels, kernels.Team(helpers), twelve=True)
    whole = Panels(Matrix(weight), without_twelve(), kernels.Team(0), twelve=True)
    assert (packed.job["bits"], whole.job["bits"]) == (12, 16)
    x = torch.randn(37, inputs, generator=torch.Generator().manual_seed(1)).numpy()
    expected = whole.multiply(x)
    for rows in range(1, len(x) + 1):
        assert (packed.multiply(x[:rows]) == expected[:rows]).all(), rows
    exact = x.astype(np.float64) @ weight.double().numpy().T
    np.testing.assert_allclose(expected, exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("outputs, inputs", [(40, 48), (72, 2208), (192, 48)])
@pytest.mark.parametrize("helpers", [0, 2])
def test_pairs_of_bfloat16_are_multiplied_as_those_of_sixteen_bits_are(outputs, inputs, helpers):
    kernels, weight = compiled_kernels(), trained(outputs, inputs)
    teams = kernels.Team(helpers), kernels.Team(0)
    x = torch.randn(37, inputs, generator=torch.Generator().manual_seed(1))
    for team in teams:
        team.make_room(x.numel())
    packed = Panels(Matrix(weight), kernels, teams[0], twelve=True)
    whole = Panels(Matrix(weight), without_twelve(), teams[1], twelve=True)
    assert (packed.job["bits"], packed.job["half"], whole.job["bits"], whole.job["half"]) == (12, 1, 16, 1)
    expected = whole.multiply(x.numpy())
    for rows in range(1, len(x) + 1):
        assert (packed.multiply(x[:rows].numpy()) == expected[:rows]).all(), rows
    torch.testing.assert_close(
        torch.from_numpy(expected), x.bfloat16().float() @ weight.float().T, atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_models_logits_are_the_same_whether_a_forward_waits_for_memory_or_not(family, dtype, monkeypatch):
    torch.set_num_threads(1)
    found, kinds = [], []
    for waits in (True, False):
        monkeypatch.setattr(laid_out, "waits_for_memory", lambda weights, pairs, waits=waits: waits)
        counted = spied(monkeypatch)
        model = make(family).bfloat16().to(dtype)
        engine = CompiledEngine(model, info(model), 1024)
        batch = FlatBatch()
        batch.add(0, list(range(2, 23)), list(range(21)), list(range(21)), causal(0, 21)).text = 100
        found.append(engine.forward(batch, list(range(21))).clone())
        kinds.append(set(counted))
    assert torch.equal(*found)
    assert kinds == [{12}, {16}]


def spied(monkeypatch) -> list[int]:
    """Fills with the bits of each matrix in panels from now on."""
    found: list[int] = []
    made = panels.Panels.__init__

    def noted(self, *arguments, **named):
        made(self, *arguments, **named)
        found.append(int(self.job["bits"][0]))

    monkeypatch.setattr(panels.Panels, "__init__", noted)
    return found


def test_an_input_of_one_reads_every_weight_back():
    weight = trained(144, 64).float()
    kernels = compiled_kernels()
    found = Panels(Matrix(weight), kernels, kernels.Team(0), twelve=True)
    assert torch.equal(torch.from_numpy(found.multiply(np.eye(64, dtype=np.float32))).T, weight)


def test_three_quarters_of_the_memory_are_read():
    parts = split(trained(PANEL, 64))
    packed = parts.pack(np.zeros(1, np.int64), PANEL, lambda size: np.empty(size, np.uint8))
    assert packed.nbytes == TABLE + parts.whole.nbytes * 3 // 4


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(4, 8),  # more bits than bfloat16 has
        torch.tensor([[1.0, float("inf")] * 4]),
        torch.tensor([[1.0, float("nan")] * 4]),
        2.0 ** torch.arange(-64, 64.0).view(8, 16),  # no exponent is rare
    ],
)
def test_a_matrix_that_would_lose_or_has_too_many_escapes_is_refused(weight):
    assert split(weight) is None


@pytest.mark.parametrize("pairs, most", [(False, 1000), (True, 500)])
def test_a_model_of_twice_the_last_cache_waits_for_memory_and_in_pairs_one_of_its_size(pairs, most, monkeypatch):
    monkeypatch.setattr(twelve_bits, "last_cache", lambda: 1000)
    assert [twelve_bits.waits_for_memory(weights, pairs) for weights in (most, most + 1)] == [False, True]


@pytest.mark.parametrize("told, found", [("512K", 512 << 10), ("", 32 << 20), (None, 32 << 20)])
def test_a_machine_that_does_not_tell_its_cache_is_taken_for_one_of_32_mib(told, found, monkeypatch, tmp_path):
    place = tmp_path / "size"
    if told is not None:
        place.write_text(f"{told}\n")
    monkeypatch.setattr(twelve_bits, "CACHE_SIZE", place)
    assert twelve_bits.last_cache.__wrapped__() == found


def test_a_matrix_of_zeros_has_no_escapes():
    parts = split(torch.zeros(8, 16))
    assert parts is not None and parts.escapes(PANEL, ESCAPE) is None


def test_exponents_from_the_largest_down_have_codes_and_the_next_is_an_escape():
    weight = torch.full((100, 64), 1.5)
    weight[0, : CODES + 2] = 1.5 * 2.0 ** -torch.arange(CODES + 2)
    parts = split(weight)
    assert parts.inputs.tolist() == [CODES - 1, CODES, CODES + 1]
    assert parts.weights.tolist() == weight[0, CODES - 1 : CODES + 2].tolist()


@pytest.mark.parametrize("outputs", [1, 40, PANEL, PANEL + 1, 3 * PANEL - 5, 4 * PANEL])
def test_every_panel_has_the_escapes_of_its_outputs(outputs):
    weight = torch.ones(outputs, 800)
    weight[:, 7] = 2.0**-30
    starts, escapes = split(weight).escapes(PANEL, ESCAPE, 4.0)
    last = max(0, outputs - PANEL)
    for panel, (begin, end) in enumerate(itertools.pairwise(starts)):
        first = min(panel * PANEL, last)
        assert escapes["output"][begin:end].tolist() == list(range(first, min(first + PANEL, outputs)))
    assert (escapes["input"] == 7).all() and (escapes["weight"] == 2.0**-28).all()
