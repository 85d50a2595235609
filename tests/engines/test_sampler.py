import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from actors.engines.sampling import sampler
from actors.engines.sampling.noise import gumbel
from actors.engines.sampling.sampler import Rows, SamplerState, _choose_together, filtered, logprobs, sample
from protocols.messages import Sampling

VOCAB = 500


def some_logits(rows: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def processed(state, logits, paths):
    """Penalised logits over the temperature, -inf where a filter removes a token."""
    s = state.sampling
    return filtered(state.penalise(logits, paths) * (1.0 / s.temperature), s.top_k, s.top_p, s.min_p)


def chosen_by(state, logits, positions, paths):
    return torch.tensor(_choose_together(logits, [Rows(state, [*positions], [*paths])]))


EVERYTHING = Sampling(
    temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.4,
    frequency_penalty=0.3, seed=5,
)  # fmt: skip


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7),
        Sampling(temperature=1.3, top_k=7),
        Sampling(temperature=0.9, top_p=0.5),
        Sampling(temperature=3.0, top_p=0.97),
        Sampling(temperature=1.0, min_p=0.05),
        Sampling(temperature=0.8, top_k=50, top_p=0.8, min_p=0.1, repetition_penalty=1.3),
    ],
)
def test_the_filters_are_those_of_transformers(sampling):
    prompt = [3, 3, 9, 17, 200]
    chain = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        chain.append(MinPLogitsWarper(sampling.min_p))
    logits = some_logits(20)
    ours = processed(SamplerState(sampling, prompt), logits.clone(), [[]] * 20)
    theirs = chain(torch.tensor([prompt] * 20), logits.clone())
    assert torch.equal(ours.isinf(), theirs.isinf())
    torch.testing.assert_close(ours, theirs)


def test_presence_and_frequency_count_the_output_only():
    logits = some_logits(1)
    state = SamplerState(Sampling(presence_penalty=0.5, frequency_penalty=0.25), [1, 1, 2], generated=[2, 7])
    state.append([7])
    got = state.penalise(logits, [[7, 9]])[0]
    expected = logits[0].clone()
    expected[2] -= 0.5 + 0.25
    expected[7] -= 0.5 + 3 * 0.25
    expected[9] -= 0.5 + 0.25
    torch.testing.assert_close(got, expected)


def test_a_bias_is_added_to_every_row_before_the_penalties_and_the_logits_themselves_stay():
    logits = some_logits(3)
    before = logits.clone()
    sampling = Sampling(logit_bias=((4, 2.5), (11, -100.0)), repetition_penalty=2.0)
    got = SamplerState(sampling, [4]).penalise(logits, [[], [11], []])
    expected = before.clone()
    expected[:, 4] += 2.5
    expected[:, 11] -= 100.0
    for row, seen in ((0, [4]), (1, [4, 11]), (2, [4])):
        values = expected[row, seen]
        expected[row, seen] = torch.where(values < 0, values * 2, values / 2)
    assert torch.equal(logits, before)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_bias_forces_and_forbids_tokens_and_a_batch_with_it_is_not_taken_for_plain(temperature):
    logits = some_logits(4)
    best = logits.argmax(-1)
    wanted = SamplerState(Sampling(temperature=temperature, logit_bias=((3, 100.0),)), [1])
    assert sample(logits, [Rows(wanted, [1, 2, 3, 4], [[]] * 4)], best) == [[3] * 4]
    without = SamplerState(
        Sampling(temperature=temperature, logit_bias=tuple((int(b), -100.0) for b in set(best.tolist()))), [1]
    )
    assert not set(sample(logits, [Rows(without, [1, 2, 3, 4], [[]] * 4)], best)[0]) & set(best.tolist())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_is_penalised_along_its_own_path_as_if_the_path_were_committed(temperature):
    sampling = Sampling(
        temperature=temperature, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.7, seed=3
    )
    paths = [[], [4], [4, 4], [4, 300], [11, 12, 4, 11]]
    logits = some_logits(len(paths), 4)
    logits[:, [4, 11, 12, 300]] += 8
    together = chosen_by(SamplerState(sampling, [1, 2, 3]), logits, [3 + len(p) for p in paths], paths)
    for row, path in enumerate(paths):
        committed = SamplerState(sampling, [1, 2, 3], generated=path)
        assert chosen_by(committed, logits[row : row + 1], [3 + len(path)], [[]]).item() == together[row].item()
        exact = committed.penalise(logits[row : row + 1], [[]])
        assert torch.equal(SamplerState(sampling, [1, 2, 3]).penalise(logits, paths)[row], exact[0])


@pytest.mark.parametrize("sampling", [EVERYTHING, Sampling(temperature=2.0, top_p=0.99), Sampling(temperature=1.0)])
@pytest.mark.parametrize("vocab", [500, 8192])
def test_a_row_has_the_same_bits_beside_any_other_rows(sampling, vocab):
    logits = some_logits(33, 1, vocab)
    state = SamplerState(sampling, list(range(20)))
    paths = [list(range(row)) for row in range(33)]
    whole = processed(state, logits, paths)
    for first, last in ((0, 1), (1, 2), (5, 9), (7, 24), (32, 33)):
        assert torch.equal(processed(state, logits[first:last], paths[first:last]), whole[first:last])


def test_the_token_is_the_argmax_of_scaled_logits_and_shared_noise():
    logits = some_logits(6)
    state = SamplerState(Sampling(temperature=0.7, seed=99), [1])
    expected = (logits * (1 / 0.7) + gumbel(99, range(10, 16), VOCAB)).argmax(-1)
    assert torch.equal(chosen_by(state, logits, range(10, 16), [[]] * 6), expected)


@pytest.mark.parametrize("vocab", [3, 17, 500, 8192, 40000])
def test_argmax_takes_the_lowest_id_of_equal_values(vocab):
    for first in {0, 1, vocab // 2, vocab - 2}:
        logits = torch.zeros(5, vocab)
        logits[:, first] = logits[:, vocab - 1] = logits[:, (first + vocab) // 2] = 1.0
        state = SamplerState(Sampling(), [0])
        assert sample(logits, [Rows(state, [1] * 5, [[]] * 5)]) == [[first] * 5]
    assert torch.zeros(2, vocab).argmax(-1).tolist() == [0, 0]


def test_tokens_that_tie_with_the_last_kept_one_are_kept():
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    assert processed(SamplerState(Sampling(temperature=1.0, top_k=2), []), logits, [[]]).isfinite().sum() == 4
    assert processed(SamplerState(Sampling(temperature=1.0, top_p=0.5), []), logits, [[]]).isfinite().sum() == 4


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=1e-5), Sampling(temperature=1.0, top_p=1e-9), Sampling(temperature=2.0, top_k=1)]
)
def test_filters_that_keep_one_token_give_the_argmax(sampling):
    logits = some_logits(50)
    state = SamplerState(sampling, [])
    assert torch.equal(chosen_by(state, logits, range(50), [[]] * 50), logits.argmax(-1))


def test_requests_with_different_settings_share_a_batch():
    settings = [Sampling(), EVERYTHING, Sampling(repetition_penalty=1.4), Sampling(temperature=1.0, seed=1)]
    groups = [Rows(SamplerState(s, [1, 2]), [5, 6, 6], [[], [8], [9]]) for s in settings]
    logits = some_logits(12)
    together = sample(logits, groups)
    for i, group in enumerate(groups):
        assert sample(logits[3 * i : 3 * i + 3], [group]) == [together[i]]
    assert together[0] == logits[:3].argmax(-1).tolist()


class Launches(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_where_torch_chooses_many_requests_take_no_more_launches_than_one(temperature, monkeypatch):
    monkeypatch.setattr(sampler, "compiled_kernels", lambda: None)
    filters = ({}, {"top_k": 20, "min_p": 0.02}, {"top_p": 0.9})
    states = [
        SamplerState(Sampling(temperature=temperature * (1 + n % 2), seed=n, **filters[n % 3]), []) for n in range(24)
    ]
    groups = [Rows(state, [5 + n, 6 + n], [[], [8]]) for n, state in enumerate(states)]
    logits, before = some_logits(48), some_logits(48)
    apart = [sample(logits[2 * n : 2 * n + 2], [group])[0] for n, group in enumerate(groups)]
    with Launches() as many:
        assert sample(logits, groups) == apart
    with Launches() as few:
        sample(logits[:6], groups[:3])
    assert torch.equal(logits, before)
    assert many.count - few.count <= 3 * 21 * 2  # views of each, and their penalties that are none


def test_sampled_tokens_follow_the_processed_distribution():
    sampling = Sampling(temperature=0.9, top_k=12, top_p=0.95, repetition_penalty=1.3, seed=21)
    logits = some_logits(1, 7, 60)
    state = SamplerState(sampling, [0, 1, 2])
    draws = 20000
    law = processed(state, logits, [[]]).double().softmax(-1)[0] * draws
    chosen = chosen_by(state, logits.expand(draws, -1), range(draws), [[]] * draws)
    counts = torch.bincount(chosen, minlength=60)
    assert counts[law == 0].sum() == 0
    kept = law > 5
    chi = float(((counts[kept] - law[kept]) ** 2 / law[kept]).sum())
    df = int(kept.sum()) - 1
    z = ((chi / df) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))
    assert z < 3.1  # one false alarm in a thousand seeds


def test_logprobs_are_those_of_the_raw_logits():
    logits = some_logits(2)
    reference = logits.log_softmax(-1)
    first, second = logprobs(logits, [5, 6], 3)
    assert first.chosen == pytest.approx(reference[0, 5].item())
    assert second.top_ids == tuple(reference[1].topk(3).indices.tolist())
    assert second.top_logprobs == pytest.approx(reference[1].topk(3).values.tolist())
    assert logprobs(logits, [5, 6], 0)[1] == type(first)(second.chosen)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, top_k=5, top_p=0.8, min_p=0.05, seed=3)])
def test_a_mask_excludes_tokens_and_leaves_the_logits_that_are_reported(sampling):
    logits = torch.randn(3, 70, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    allowed = [[69], [0, 31, 32, 64], list(range(70))]
    bits = np.zeros((3, 96), dtype=np.uint8)
    for row, tokens in enumerate(allowed):
        bits[row, tokens] = 1
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    free = Rows(SamplerState(sampling, [1]), [5, 6, 7], [[], [], []])
    bound = Rows(SamplerState(sampling, [1]), [5, 6, 7], [[], [], []], masks)
    [chosen] = sample(logits, [bound])
    assert chosen[0] == 69 and chosen[1] in allowed[1] and chosen[2] == sample(logits, [free])[0][2]
    assert torch.equal(logits, before)
    alone = Rows(SamplerState(sampling, [1]), [6], [[]], masks[1:2])
    assert sample(logits[1:2], [alone]) == [chosen[1:2]]
