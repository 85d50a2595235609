"""A row's token, by the compiled choice and by torch's operations: the same one, always."""

import numpy as np
import pytest
import torch
from numba import njit

import actors.engines.sampling.sampler as sampler
from actors.engines.decoder.cpu.noise_tiles import consecutive, gumbel_tile, noise_limit_tile
from actors.engines.decoder.cpu.records import LANES
from actors.engines.decoder.cpu.simd import store
from actors.engines.sampling.sampler import Rows, SamplerState, sample
from protocols.messages import Sampling
from tests.world.pairs import every_pair

SETTINGS = [
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.3, seed=-4),
    Sampling(temperature=1e-5, seed=2**64 - 1),
    Sampling(temperature=1e4, seed=1),
    Sampling(temperature=0.8, top_k=40, seed=5),
    Sampling(temperature=1.0, top_k=1, seed=5),
    Sampling(temperature=1.0, top_p=0.9, seed=6),
    Sampling(temperature=1.3, top_p=0.3, seed=7),
    Sampling(temperature=1.0, top_p=1e-9, seed=7),
    Sampling(temperature=0.7, min_p=0.1, seed=8),
    Sampling(temperature=1.5, top_p=0.5, top_k=100, min_p=0.01, seed=9),
]
GREEDY = Sampling()
PENALISED = Sampling(temperature=0.9, repetition_penalty=1.3, logit_bias=((2, 4.0), (5, -100.0)), top_p=0.95, seed=1)


def many_logits(rows: int, size: int, scale: float, seed: int) -> torch.Tensor:
    """Rows that do not lie one behind the other, some with ties and with excluded tokens."""
    logits = torch.randn(rows, size + 3, generator=torch.Generator().manual_seed(seed))[:, :size] * scale
    logits[0] = 1.0
    logits[1, 1:] = -torch.inf
    logits[2, : size // 2] = -torch.inf
    logits[3:10] = logits[3:10].round()
    return logits


def by_torch(monkeypatch, *arguments):
    with monkeypatch.context() as patch:
        patch.setattr(sampler, "compiled_kernels", lambda: None)
        return sample(*arguments)


@pytest.mark.parametrize(("setting", "scale", "size"), every_pair(SETTINGS, [0.1, 3.0, 8.0], [16, 17, 500, 8192]))
def test_the_compiled_choice_is_that_of_torch(setting, scale, size, monkeypatch):
    count = 200 if size == 8192 else 600
    logits = many_logits(count, size, scale, size)
    group = Rows(SamplerState(setting, []), list(range(count)), [[]] * count)
    assert sample(logits, [group]) == by_torch(monkeypatch, logits, [group])


def test_rows_of_all_kinds_share_a_call(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    for trial in range(20):
        masks = torch.randint(-(2**31), 2**31 - 1, (4, 16), generator=generator).numpy().astype(np.int32)
        groups = [
            Rows(SamplerState(setting, [1, 2, 3]), [trial, trial + 1, trial + 2, trial + 2], [[], [7], [7, 8], [7, 9]])
            for setting in (GREEDY, *SETTINGS, PENALISED)
        ]
        groups += [
            Rows(SamplerState(setting, [1]), [5, 6, 7, 7], [[]] * 4, masks)
            for setting in (GREEDY, *SETTINGS, PENALISED)
        ]
        logits = torch.randn(4 * len(groups), 500, generator=generator) * 4
        before = logits.clone()
        assert sample(logits, groups) == by_torch(monkeypatch, logits, groups)
        assert torch.equal(logits, before)


def chosen(logits: torch.Tensor, setting: Sampling) -> list[int | None]:
    """None: torch is to choose."""
    from actors.engines.decoder.cpu.choice import CHOICE, UNSURE, choose_rows  # compiles

    rows = [(i, *SamplerState(setting, []).choice) for i in range(len(logits))]
    tokens = np.empty(len(logits), np.int64)
    choose_rows(np.array(rows, dtype=CHOICE), logits.numpy(), tokens)
    return [None if token == UNSURE else token for token in tokens.tolist()]


def test_compiled_code_seldom_leaves_a_choice_to_torch():
    logits = torch.randn(2000, 8192, generator=torch.Generator().manual_seed(0)) * 3
    assert chosen(logits, Sampling(temperature=1.0)).count(None) <= 3
    assert chosen(logits, Sampling(temperature=1.0, top_k=50, top_p=0.9)).count(None) <= 10


def test_torch_is_asked_where_two_scores_or_the_end_of_the_nucleus_are_too_near_to_tell():
    tied = torch.zeros(1, 500)
    tied[0, [3, 4]] = 1e8  # beside which their noise is lost
    assert chosen(tied, Sampling(temperature=1.0)) == [None]
    halves = torch.full((50, 500), -torch.inf)
    halves[:, 3], halves[:, 4] = 1.0, 1.0 - 1e-4
    assert set(chosen(halves, Sampling(temperature=1.0, top_p=0.50002))) <= {3, None}
    assert set(chosen(halves, Sampling(temperature=1.0, top_p=0.6))) == {3, 4}


@njit
def _tiles(size, one, other, noise, limits):
    for first in range(0, size, LANES):
        store(noise, first, gumbel_tile(consecutive(np.uint32(first)), one, other))
        store(limits, first, noise_limit_tile(consecutive(np.uint32(first)), one, other))


def test_noise_is_never_above_its_limit_and_near_it_where_it_is_large():
    size = 1 << 20
    noise, limits = np.empty(size, np.float32), np.empty(size, np.float32)
    for seed in range(8):
        _tiles(size, np.uint32(2654435761 * seed % 2**32), np.uint32(40503 * seed), noise, limits)
        assert (limits > noise).all()
        assert (limits - noise)[noise > 5].max() < 0.1
