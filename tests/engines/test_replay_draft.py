import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import VOCAB, info, make

from actors.engines.backends.transformers import TransformersEngine
from actors.engines.draft import CHUNK, Draft
from actors.engines.replay import replay_draft
from actors.models import Leaf
from actors.replay.logged import LoggedRequest
from protocols.messages import Sampling


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def draft_of(**facts):
    model = make("llama")
    return Draft(TransformersEngine(model, replace(info(model), **facts), 4096))


def some(count, seed):
    chance = random.Random(seed)
    return tuple(chance.randrange(2, VOCAB) for _ in range(count))


def stepwise(draft, request):
    """Ranks and log-probabilities as a drafter finds them that hears of one token after the other."""
    handle = draft.open(request.prompt, len(request.prompt), request.sampling)
    ranks = []
    for before, token in zip((request.prompt[-1], *request.text), request.text, strict=False):
        [expansion] = draft.expand([Leaf(handle, before, (), is_root=True)])
        ranks.append(expansion.tokens.index(token) + 1 if token in expansion.tokens else 0)
        draft.commit(handle, [token], [-1])
    draft.close(handle)
    return ranks


SAMPLINGS = [
    Sampling(max_tokens=400),
    Sampling(max_tokens=400, temperature=1.0, seed=7),
    Sampling(max_tokens=400, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=1),
    Sampling(max_tokens=400, temperature=0.9, frequency_penalty=0.7, repetition_penalty=1.2, seed=2),
    Sampling(max_tokens=400, temperature=0.9, logit_bias=((7, 3.0),), seed=2),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_replay_names_the_ranks_of_a_drafter_that_heard_token_after_token(sampling):
    draft = draft_of()
    logged = [LoggedRequest(prompt=some(5, 1), text=some(60, 2), sampling=sampling)]
    [ranks] = replay_draft(draft, logged).ranks
    assert ranks.tolist() == stepwise(draft, logged[0])
    assert 0 < (ranks > 0).sum() < 60


def test_texts_longer_than_a_forward_are_replayed_in_pieces():
    draft = draft_of()
    request = LoggedRequest(prompt=some(CHUNK + 3, 1), text=some(CHUNK - 30, 2), sampling=Sampling(max_tokens=400))
    [ranks] = replay_draft(draft, [request]).ranks
    assert ranks.tolist() == stepwise(draft, request)


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_log_probabilities_are_the_drafts_own_at_the_requests_temperature(temperature):
    model = make("llama")
    draft = Draft(TransformersEngine(model, info(model), 4096))
    request = LoggedRequest(prompt=some(5, 1), text=some(9, 2), sampling=Sampling(temperature=temperature))
    [found] = replay_draft(draft, [request]).logprobs
    with torch.inference_mode():
        logits = model(torch.tensor([[*request.prompt, *request.text[:-1]]])).logits[0, 4:].float()
    lp = (logits / (temperature or 1.0)).log_softmax(-1)
    assert found == pytest.approx(lp.gather(1, torch.tensor(request.text)[:, None])[:, 0].numpy(), abs=1e-3)


def test_behind_what_the_draft_cannot_mirror_nothing_is_found():
    draft = draft_of(max_context=20)
    long = LoggedRequest(prompt=some(5, 1), text=some(30, 2), sampling=Sampling(max_tokens=400))
    strange = LoggedRequest(prompt=(*some(5, 1), VOCAB + 5), text=some(4, 2))
    ends = LoggedRequest(prompt=some(5, 1), text=(3, VOCAB + 5, 4, 5))
    agreement = replay_draft(draft, [long, strange, ends])
    assert [np.isfinite(each).tolist() for each in agreement.logprobs] == [
        [True] * 15 + [False] * 15,
        [False] * 4,
        [True, False, False, False],
    ]
    assert all((ranks[np.isinf(lp)] == 0).all() for ranks, lp in zip(agreement.ranks, agreement.logprobs, strict=True))
