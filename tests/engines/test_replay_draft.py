import random
from dataclasses import replace

import pytest
import torch

from actors.engines.drafts.draft import CHUNK, Draft
from actors.engines.drafts.replay import replay_draft
from actors.models import Leaf
from actors.records import LoggedRequest
from protocols.messages import Sampling
from tests.engines.tiny import VOCAB, info, make, torch_engine


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def draft_of(**facts):
    model = make("llama")
    return Draft(torch_engine(model, replace(info(model), **facts), 4096))


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
    [ranks] = replay_draft(draft, logged)
    assert ranks.tolist() == stepwise(draft, logged[0])
    assert 0 < (ranks > 0).sum() < 60


def test_texts_longer_than_a_forward_are_replayed_in_pieces():
    draft = draft_of()
    request = LoggedRequest(prompt=some(CHUNK - 20, 1), text=some(50, 2), sampling=Sampling(max_tokens=400))
    [ranks] = replay_draft(draft, [request])
    assert ranks.tolist() == stepwise(draft, request)


def test_behind_what_the_draft_cannot_mirror_nothing_is_found():
    draft = draft_of(max_context=20)
    long = LoggedRequest(prompt=some(5, 1), text=some(30, 2), sampling=Sampling(max_tokens=400))
    strange = LoggedRequest(prompt=(*some(5, 1), VOCAB + 5), text=some(4, 2))
    ends = LoggedRequest(prompt=some(5, 1), text=(3, VOCAB + 5, 4, 5))
    cut, nothing, ended = replay_draft(draft, [long, strange, ends])
    assert not cut[15:].any() and not nothing.any() and not ended[1:].any()
    near = LoggedRequest(prompt=long.prompt, text=long.text[:15], sampling=long.sampling)
    assert cut[:15].tolist() == stepwise(draft, near)
