"""A draft's candidates, by the compiled layers and by torch's operations."""

import numpy as np
import pytest
import torch

import actors.engines.sampling.sampler as sampler
from actors.engines.decoder.cpu.compiler import compiled_kernels
from actors.engines.drafts.ranking import Row, rank
from actors.engines.sampling.noise import gumbel
from actors.engines.sampling.sampler import SamplerState
from protocols.messages import Sampling
from tests.engines.test_sampler import processed


@pytest.mark.parametrize("size", [16, 100, 4097])
def test_the_likeliest_ids_of_every_row_come_best_first_and_of_equal_ones_the_lower(size):
    logits = torch.randn(5, size + 7, generator=torch.Generator().manual_seed(0))[:, :size] * 3
    logits[1, [3, 7]] = 50.0
    logits[2] = 1.0
    logits[3, 1:] = -torch.inf
    state = SamplerState(Sampling(), [])
    ids, found = (
        np.array(part) for part in zip(*rank(logits, [Row(i, i, state, 7, []) for i in range(5)], 8), strict=True)
    )
    expected = logits.softmax(-1).sort(descending=True, stable=True)
    assert ids[:3].tolist() == expected.indices[:3, :8].tolist() and ids[4].tolist() == expected.indices[4, :8].tolist()
    assert ids[3, 0] == 0 and found[3].tolist() == [1.0] + [0.0] * 7
    np.testing.assert_allclose(found, expected.values[:, :8].numpy(), rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("kernels", [compiled_kernels, lambda: None], ids=["compiled", "torch"])
@pytest.mark.parametrize("size", [17, 200, 4099])
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1.5])
def test_candidates_are_the_best_with_the_shared_noise_and_confidence_is_their_part(
    kernels, size, temperature, monkeypatch
):
    monkeypatch.setattr(sampler, "compiled_kernels", kernels)
    for seed in range(20):
        sampling = Sampling(temperature=temperature, seed=7919 * seed)
        logits = torch.randn(3, size, generator=torch.Generator().manual_seed(seed)) * 6
        rows = [Row(i, i, SamplerState(sampling, [1, 2]), 7 + i, []) for i in range(3)]
        noisy = logits / temperature + gumbel(sampling.seed, [7, 8, 9], size) if temperature else logits
        expected = noisy.softmax(-1).topk(8)
        for (ids, confidence), best, parts in zip(
            rank(logits, rows, 8), expected.indices.tolist(), expected.values.tolist(), strict=True
        ):
            assert ids == best
            np.testing.assert_allclose(confidence, parts, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=5, seed=1),
        Sampling(temperature=0.8, top_p=0.7, seed=2),
        Sampling(temperature=1.2, min_p=0.05, seed=3),
        Sampling(temperature=1.5, top_k=50, top_p=0.9, min_p=0.001, seed=4),
        Sampling(temperature=1.0, top_p=0.01, seed=5),
    ],
)
@pytest.mark.parametrize("kernels", [compiled_kernels, lambda: None], ids=["compiled", "torch"])
def test_candidates_are_among_those_that_the_filters_leave_the_target(kernels, sampling, monkeypatch):
    monkeypatch.setattr(sampler, "compiled_kernels", kernels)
    state, count = SamplerState(sampling, []), 40
    logits = torch.randn(count, 300, generator=torch.Generator().manual_seed(3)) * 3
    left = processed(state, logits, [[]] * count) + gumbel(sampling.seed, range(count), 300)
    best = left.softmax(-1).topk(8)
    for row, (ids, confidence) in enumerate(rank(logits, [Row(i, i, state, i, []) for i in range(count)], 8)):
        kept = int((best.values[row] > 0).sum())
        assert ids[:kept] == best.indices[row, :kept].tolist() and len(set(ids)) == 8
        np.testing.assert_allclose(confidence, best.values[row].numpy(), rtol=1e-3, atol=1e-5)
