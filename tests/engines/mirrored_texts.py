"""Drafts of toy models, prompts, and what a drafter says that sees a whole text for the first time."""

import random

import pytest
import torch

from actors.engines.drafts.draft import Draft
from actors.models import Leaf
from protocols.messages import Sampling
from tests.engines import tiny
from tests.engines.tiny import VOCAB, make


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def engine_of(slots=4096, family="llama"):
    return tiny.engine_of(make(family), slots)


def some_prompt(length, seed=0):
    chance = random.Random(seed)
    return [chance.randrange(2, VOCAB) for _ in range(length)]


def root(handle):
    return Leaf(handle, 0, (), is_root=True)


def fresh(engine, tokens, prompt_len, sampling):
    """What a drafter says that sees the whole text for the first time."""
    draft = Draft(engine)
    return draft.expand([root(draft.open(tokens, prompt_len, sampling))])[0]


def assert_same(one, other):
    assert one.tokens == other.tokens
    assert one.probs == pytest.approx(other.probs, rel=1e-3, abs=1e-5)


SAMPLINGS = [
    Sampling(max_tokens=80),
    Sampling(max_tokens=80, temperature=1.0, seed=7),
    Sampling(max_tokens=80, temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=1),
    Sampling(max_tokens=80, repetition_penalty=1.4, presence_penalty=0.5),
    Sampling(max_tokens=80, temperature=0.9, frequency_penalty=0.7, seed=2),
    Sampling(max_tokens=80, temperature=0.9, logit_bias=((7, 3.0),), seed=2),
]
