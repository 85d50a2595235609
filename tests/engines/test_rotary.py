"""Rotary embeddings that look at a whole batch in transformers: here a request's bits depend on itself alone."""

from copy import deepcopy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from actors.engines.drafts.draft import Draft
from actors.engines.generic.engine import TransformersEngine
from actors.models import Leaf, Window
from protocols.messages import Sampling
from tests.engines.test_target import begin, chain, plain, some_prompt, speculate, target_of, tree
from tests.engines.tiny import COMMON, FAMILIES, info, make

EDGE = 64  # LongRoPE's original length
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": EDGE,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.7 * i for i in range(8)],
}
NTK = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.fixture(autouse=True)
def families(monkeypatch):
    torch.set_num_threads(1)
    phi = COMMON | {"rope_parameters": LONG, "original_max_position_embeddings": EDGE}
    llama = COMMON | {"rope_parameters": NTK, "max_position_embeddings": 96}
    monkeypatch.setitem(FAMILIES, "phi3-long", lambda: Phi3ForCausalLM(Phi3Config(**deepcopy(phi))))
    monkeypatch.setitem(FAMILIES, "llama-dynamic", lambda: LlamaForCausalLM(LlamaConfig(**deepcopy(llama))))


def generate(family, prompt, count):
    """What transformers itself makes of it."""
    ids = torch.tensor([prompt])
    out = make(family).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("length", "count"), [(20, EDGE - 20), (EDGE + 6, 40), (300, 40)])
def test_longrope_texts_on_either_side_of_the_edge_are_those_of_generate(length, count):
    prompt = some_prompt(length)
    tokens, _ = plain(target_of(family="phi3-long"), prompt, Sampling(max_tokens=count), count)
    assert tokens == generate("phi3-long", prompt, count)


def test_the_short_and_the_long_frequencies_differ():
    prompt = some_prompt(20)
    short, _ = plain(target_of(family="phi3-long"), prompt, Sampling(max_tokens=30), 30)
    long, _ = plain(target_of(family="phi3-long"), prompt, Sampling(max_tokens=80), 30)
    assert short != long


@pytest.mark.parametrize("window", [chain, lambda c, t: tree(c, t, first=False)])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_speculation_across_longropes_edge_commits_what_plain_decoding_commits(window, temperature):
    target, sampling = target_of(family="phi3-long"), Sampling(max_tokens=80, temperature=temperature, seed=4)
    truth, _ = plain(target, some_prompt(30), sampling, 80)
    assert speculate(target, some_prompt(30), sampling, truth, window)[:80] == truth


def test_a_stream_resumed_behind_longropes_edge_goes_on_with_the_same_text():
    sampling = Sampling(max_tokens=80, temperature=0.9, seed=4)
    truth, _ = plain(target_of(family="phi3-long"), some_prompt(30), sampling, 80)
    target = target_of(family="phi3-long")
    handle, tokens = begin(target, some_prompt(30), sampling, truth[:50])
    while len(tokens) < 30:
        tokens += target.verify([Window(handle)])[0].tokens
    assert tokens == truth[50:]


@pytest.mark.parametrize("family", ["phi3-long", "llama-dynamic"])
def test_a_long_neighbour_changes_no_bit_of_a_short_request(family):
    """Bits, where the shape of the rounds is the same: the neighbour beside it is short once, and long once."""
    logits = []
    for length in (20, EDGE + 10):
        target = target_of(family=family)
        one, _ = begin(target, some_prompt(20), Sampling(max_tokens=40))
        other, _ = begin(target, some_prompt(length, seed=1), Sampling(max_tokens=20))
        logits.append([])
        for _ in range(10):
            target.verify([Window(one), Window(other)])
            logits[-1].append(target.engine.logits[0].clone())
    assert torch.equal(torch.stack(logits[0]), torch.stack(logits[1]))


def test_dynamic_scaling_gives_generates_text_up_to_the_last_position():
    prompt = some_prompt(40)
    target = target_of(family="llama-dynamic")
    truth = generate("llama-dynamic", prompt, 56)
    assert plain(target, prompt, Sampling(max_tokens=56), 56)[0] == truth
    assert speculate(target, prompt, Sampling(max_tokens=56), truth, chain)[:56] == truth


def test_a_draft_of_that_kind_ranks_like_the_model_itself():
    model = make("phi3-long")
    engine = TransformersEngine(model, info(model), 4096)
    prompt = some_prompt(100)
    draft = Draft(engine)
    handle = draft.open(prompt, 100, Sampling(max_tokens=50))
    [top] = draft.expand([Leaf(handle, 0, (), is_root=True)])
    assert top.tokens[0] == generate("phi3-long", prompt, 1)[0]
