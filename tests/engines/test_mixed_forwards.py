"""A piece of a prompt in a round's forward: both have the bits that they have alone."""

import random

import pytest
import torch

from actors.engines.decoder.cpu.engine import CompiledEngine
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.test_target import begin, chain, some_prompt, target_of
from tests.engines.tiny import info, make, torch_engine


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def alone(engine, prompt, sampling, count):
    target = target_of_engine(engine)
    handle, tokens = begin(target, prompt, sampling)
    while len(tokens) < count:
        tokens += target.verify([Window(handle)])[0].tokens
    return tokens[:count]


def target_of_engine(engine):
    model = make("llama")
    return Target(engine(model, info(model), 2048), rows_agree=ROWS)


@pytest.mark.parametrize("engine", [torch_engine, CompiledEngine])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_rounds_and_prompts_apart(engine, temperature):
    chance = random.Random(5)
    prompts = [some_prompt(length, seed=length) for length in (30, 75, 140)]
    sampling = [Sampling(max_tokens=80, seed=n, temperature=temperature, logprobs=0) for n in range(3)]
    truth = [alone(engine, prompt, one, 60) for prompt, one in zip(prompts, sampling, strict=True)]
    target = target_of_engine(engine)
    assert target.mixes_prompts
    handle, tokens = begin(target, prompts[0], sampling[0])
    texts = {handle: tokens}
    order = {handle: truth[0]}
    for prompt, one, right in zip(prompts[1:], sampling[1:], truth[1:], strict=True):
        joining, first = target.open(prompt, one), None
        while first is None:
            windows = [
                Window(h, *chain(chance, order[h][len(text) :][: chance.randrange(5)])) for h, text in texts.items()
            ]
            outcomes, first = target.verify_beside(windows, joining, chance.choice((1, 7, 16, 40)))
            for h, outcome in zip(list(texts), outcomes, strict=True):
                texts[h] = texts[h] + outcome.tokens
        texts[joining], order[joining] = list(first.tokens), right
    for h, text in texts.items():
        while len(text) < 60:
            text += target.verify([Window(h)])[0].tokens
    for h, text in texts.items():
        assert text[: len(order[h])] == order[h][: len(text)]


def test_what_is_replayed_goes_beside_a_round_too():
    sampling = Sampling(max_tokens=80)
    prompt, other = some_prompt(40), some_prompt(50, seed=1)
    truth = alone(CompiledEngine, prompt, sampling, 60)
    target = target_of_engine(CompiledEngine)
    running, _ = begin(target, other, sampling)
    resumed, first = target.open(prompt, sampling, truth[:25]), None
    while first is None:
        _, first = target.verify_beside([Window(running)], resumed, 9)
    tokens = truth[:25] + first.tokens
    while len(tokens) < 60:
        tokens += target.verify([Window(resumed)])[0].tokens
    assert tokens[:60] == truth


def test_where_bits_depend_on_the_number_of_rows_prompts_have_forwards_of_their_own():
    assert not target_of(rows_agree=(4, 8, 16)).mixes_prompts
