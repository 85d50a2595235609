"""A replay's word on what drafts bring, held against the running system."""

import copy
import random

import pytest
import torch

from actors.engines.drafts.draft import Draft
from actors.engines.drafts.replay import replay_draft
from actors.engines.generic.engine import TransformersEngine
from actors.engines.targets.target import Target
from actors.records import read_log
from actors.replay.clock import run
from actors.replay.measured import RoundTimes
from actors.replay.system import Policy, Times, replay
from actors.verifier.request_log import RequestLog
from protocols.messages import FinishReason, Sampling
from tests.engines.tiny import VOCAB, info, make
from tests.world.cluster import Cluster
from tests.world.fakes import ToyCodec

GAMMA = 4
FORWARD_US = {1: 2300.0, 4: 3300.0, 8: 4400.0, 32: 11000.0}
TIMES = Times(FORWARD_US, {1: 100.0, 8: 200.0}, message=150.0, round=RoundTimes(300.0, 300.0))
SAMPLINGS = [
    Sampling(max_tokens=60),
    Sampling(max_tokens=60, temperature=1.0, seed=3, ignore_eos=True),
    Sampling(max_tokens=60, temperature=0.7, top_p=0.9, repetition_penalty=1.2, seed=4, stop_token_ids=tuple(range(9))),
]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def models():
    """A target, and a draft that is the target with some noise in its weights."""
    model = make("llama")
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + 0.15 * torch.randn_like(parameter))
    return Target(TransformersEngine(model, info(model), 4096)), Draft(TransformersEngine(other, info(other), 4096))


def served(target, draft, file, method="sps"):
    """What a running system accepts in each round of some requests, which it logs."""

    async def main():
        log = RequestLog(str(file))
        async with Cluster(target=target, codec=ToyCodec(), request_log=log) as cluster:
            cluster.start_drafter("d", model=draft, **named(target.info))
            await cluster.connected("d")
            caller = await cluster.caller()
            chance, rounds = random.Random(5), []
            for number in range(9):
                prompt = [chance.randrange(2, VOCAB) for _ in range(12)]
                chunks = await caller.generate(prompt, SAMPLINGS[number % 3], method, num_speculative_tokens=GAMMA)
                rounds.append(tuple(sum(chunk.accepted) for chunk in chunks[1:]))
        log.close()
        return rounds

    return run(main())


def named(facts):
    return {"vocab_size": facts.vocab_size, "tokenizer_digest": facts.tokenizer_digest, "max_context": 512}


def test_a_replay_accepts_in_every_round_what_the_running_system_accepted(models, tmp_path):
    target, draft = models
    real = served(target, draft, tmp_path / "log")
    logged = list(read_log(tmp_path / "log"))
    assert {one.finish_reason for one in logged} == {FinishReason.STOP, FinishReason.LENGTH}
    again = replay(logged, draft, TIMES, Policy("sps", GAMMA))
    assert [one.accepted for one in again] == real
    accepted = [count for rounds in real for count in rounds]
    assert {0, 1, GAMMA} <= set(accepted)


def test_the_ranks_of_a_replayed_draft_tell_the_same(models, tmp_path):
    """By the rule of a chain alone: no actors, no clock."""
    target, draft = models
    real = served(target, draft, tmp_path / "log")
    logged = list(read_log(tmp_path / "log"))
    for request, ranks, rounds in zip(logged, replay_draft(draft, logged), real, strict=True):
        if request.finish_reason == FinishReason.LENGTH:
            assert chain(ranks.tolist()) == rounds


def chain(ranks):
    """Draft tokens that each round accepts of a chain of GAMMA, behind the first token."""
    found, at = [], 1
    while at < len(ranks):
        right = 0
        while right < GAMMA and at + right < len(ranks) - 1 and ranks[at + right] == 1:
            right += 1
        found.append(right)
        at += right + 1
    return tuple(found)
