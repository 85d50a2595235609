import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from actors.engines.sampling.noise import _gumbel, gumbel, hash31
from actors.noise import gumbel_at, keys

M32 = (1 << 32) - 1
GOLDEN_KEYS = (2802244911, 1293516399)
GOLDEN_HASHES = [[226259424, 1264830386, 738676548, 1760757931], [1219080558, 540428494, 300909219, 1223119638]]


def reference_hash(seed: int, position: int, token: int) -> int:
    """The formula of the module's docstring in plain integers."""
    k0, k1 = keys(seed, position)
    x = (token * 0x9E3779B1 + k0) & M32
    x ^= x >> 16
    x = (x * 0x7FEB352D) & M32
    x ^= x >> 15
    x ^= k1
    x = (x * 0x846CA68B) & M32
    x ^= x >> 16
    return x >> 1


def keyed(seed: int, positions: Sequence[int]) -> list[tuple[int, int]]:
    return [keys(seed, position) for position in positions]


def uniforms(seed: int, positions: range, vocab: int) -> np.ndarray:
    return (hash31(keyed(seed, positions), vocab).double().numpy() + 0.5) / 2**31


def ks_distance(sample: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance from the uniform law, times sqrt(n); above 1.95 with probability 0.001."""
    x = np.sort(sample.ravel())
    n = len(x)
    steps = np.arange(n)
    return float(max((x - steps / n).max(), ((steps + 1) / n - x).max()) * math.sqrt(n))


def chi_square_z(counts: np.ndarray, expected: np.ndarray) -> float:
    """Standard normal score of a chi-square statistic (Wilson-Hilferty)."""
    df = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return ((statistic / df) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**64 - 1, 123456789012345])
def test_torch_and_plain_integers_hash_alike(seed):
    positions = [0, 1, 77, 4095, 2**20]
    dense = hash31(keyed(seed, positions), 300)
    assert dense.tolist() == [[reference_hash(seed, p, t) for t in range(300)] for p in positions]


def test_the_noise_of_one_token_is_that_of_the_tensor():
    tokens = [0, 1, 77, 49151, 262143]
    for seed, position in ((0, 0), (7, 4095), (2**64 - 1, 12)):
        expected = gumbel(seed, [position], torch.tensor(tokens)).flatten().tolist()
        assert [gumbel_at(keys(seed, position), token) for token in tokens] == pytest.approx(expected, rel=1e-5)


def test_the_hash_never_changes():
    """A resumed stream may meet another version of this program: these numbers are part of the protocol."""
    assert keys(0, 0) == GOLDEN_KEYS
    assert hash31(keyed(42, [0, 7]), torch.tensor([0, 1, 8191, 151935])).tolist() == GOLDEN_HASHES


def test_random_access_gives_the_values_of_the_whole_vocabulary():
    positions = list(range(5, 45))
    dense = gumbel(9, positions, 8192)  # in several blocks
    ids = torch.randint(8192, (40, 64), generator=torch.Generator().manual_seed(0))
    assert torch.equal(gumbel(9, positions, ids), dense.gather(1, ids))
    assert torch.equal(gumbel(9, positions, ids[0]), dense[:, ids[0]])
    for row in (0, 17, 39):
        assert torch.equal(gumbel(9, positions[row : row + 1], 8192)[0], dense[row])


def test_a_seed_counts_modulo_two_to_the_64():
    assert keys(-1, 3) == keys(2**64 - 1, 3)
    assert keys(0, 3) != keys(1, 3) != keys(1, 4)


def test_the_extreme_hashes_give_finite_noise():
    extremes = _gumbel(torch.tensor([0, 1, 2**24, 2**31 - 129, 2**31 - 2, 2**31 - 1], dtype=torch.int32))
    assert torch.isfinite(extremes).all()
    assert extremes.max() - extremes.min() < 25.2
    many = gumbel(3, range(200), 8192)
    assert torch.isfinite(many).all()
    assert abs(float(many.mean()) - 0.57722) < 4 * 1.2826 / math.sqrt(many.numel())
    assert abs(float(many.std()) - 1.28255) < 0.01


# Thresholds below: chance of a false alarm 0.001 per statistic for a perfect generator; the seeds are fixed.


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_uniform_over_tokens_positions_and_bits(seed):
    sample = uniforms(seed, range(64), 8192)
    assert ks_distance(sample) < 1.95
    assert ks_distance(sample[:, 17]) < 1.95
    counts = np.bincount((sample * 4096).astype(int).ravel(), minlength=4096)
    assert abs(chi_square_z(counts, np.full(4096, sample.size / 4096))) < 3.29
    bits = hash31(keyed(seed, range(64)), 8192).numpy()
    for bit in range(31):
        share = ((bits >> bit) & 1).mean()
        assert abs(share - 0.5) * 2 * math.sqrt(bits.size) < 4.2, bit  # 31 looks at each sample


def test_one_token_is_uniform_over_seeds():
    sample = np.array([hash31(keyed(seed, [12]), torch.tensor([345])).item() for seed in range(2000)])
    assert ks_distance((sample + 0.5) / 2**31) < 1.95


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 16, 64, 256])
def test_neighbouring_tokens_positions_and_seeds_do_not_correlate(lag):
    sample = uniforms(5, range(80), 8192) - 0.5
    other_seed = uniforms(5 + lag, range(80), 8192) - 0.5
    pairs = {"token": (sample[:, lag:], sample[:, :-lag]), "seed": (sample, other_seed)}
    if lag < 80:
        pairs["position"] = (sample[lag:], sample[:-lag])
    for name, (a, b) in pairs.items():
        r = float((a * b).mean() * 12 * math.sqrt(a.size))
        assert abs(r) < 3.8, (name, r)  # 20 looks in all


def test_pairs_fill_the_unit_square():
    sample = uniforms(11, range(128), 8192)
    for a, b in ((sample[:, 1:], sample[:, :-1]), (sample[1:], sample[:-1])):
        cells = (a * 64).astype(int) * 64 + (b * 64).astype(int)
        counts = np.bincount(cells.ravel(), minlength=4096)
        assert abs(chi_square_z(counts, np.full(4096, cells.size / 4096))) < 3.29


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_argmax_of_logits_plus_noise_samples_the_softmax(temperature):
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 1.5 / temperature
    draws = 40000
    tokens = (logits + gumbel(8, range(draws), 40)).argmax(-1)
    counts = torch.bincount(tokens, minlength=40).double().numpy()
    expected = logits.double().softmax(-1).numpy() * draws
    rare = expected < 20  # one cell together: the chi-square law needs filled cells
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    assert expected.min() > 5
    assert abs(chi_square_z(counts, expected)) < 3.29


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_hashes_alike():
    assert torch.equal(hash31(keyed(7, range(50)), 8192, "cuda").cpu(), hash31(keyed(7, range(50)), 8192))
