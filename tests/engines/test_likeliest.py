"""What a learner is told of the target's rows is what its clients' log-probabilities say of the same rows."""

import math
import random

import pytest
import torch

from actors.engines.decoder.engine import LlamaEngine
from actors.engines.generic.engine import TransformersEngine
from actors.engines.sampling.sampler import logprobs
from actors.engines.targets import likeliest as likeliest_file
from actors.engines.targets.likeliest import likeliest
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.test_target import begin, chain, some_prompt, tree
from tests.engines.tiny import info, make

TOP = 16


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(params=["compiled", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(likeliest_file, "for_kernels", lambda logits: None)


def same(found, entries):
    """Of ``Outcome.likeliest`` and ``Outcome.logprobs``."""
    assert len(found.ids) == len(found.probabilities) == len(entries)
    for ids, probabilities, entry in zip(found.ids.tolist(), found.probabilities.tolist(), entries, strict=True):
        assert tuple(ids) == entry.top_ids[: len(ids)]
        assert [math.log(p) for p in probabilities] == pytest.approx(entry.top_logprobs[: len(ids)], abs=1e-4)


PLAIN = [  # sampling, and how many of the likeliest
    (Sampling(max_tokens=90, logprobs=TOP), TOP),
    (Sampling(max_tokens=90, temperature=1.0, seed=4, top_p=0.9, logprobs=TOP), 5),
    (Sampling(max_tokens=90), 0),
]
PENALISED = [*PLAIN, (Sampling(max_tokens=90, repetition_penalty=1.4, logit_bias=((3, 9.0),), logprobs=TOP), TOP)]


@pytest.mark.parametrize("engine", [TransformersEngine, LlamaEngine])
@pytest.mark.parametrize("window", [chain, lambda c, t: tree(c, t, first=False)])
@pytest.mark.parametrize("wanted", [PLAIN, PENALISED])
def test_the_likeliest_at_each_place_are_those_of_the_log_probabilities(engine, window, wanted, way):
    chance, model = random.Random(2), make("llama")
    target = Target(engine(model, info(model), 8192), rows_agree=ROWS)
    asked, texts, truths = {}, {}, {}
    for number, (sampling, count) in enumerate(wanted):
        prompt = some_prompt(30 + number, seed=number)
        plain, truth = begin(target, prompt, sampling)
        while len(truth) < 50:
            truth += target.verify([Window(plain)])[0].tokens
        target.close(plain)
        joining, first = target.open(prompt, sampling, likeliest=count), None
        while first is None:  # beside the rounds of the others, as far as there are any
            windows = [Window(h, *window(chance, truths[h][len(texts[h]) :][:4])) for h in texts]
            outcomes, first = target.verify_beside(windows, joining, 16) if windows else ([], target.prefill(joining))
            for handle, outcome in zip(list(texts), outcomes, strict=True):
                check(outcome, asked[handle])
                texts[handle] += outcome.tokens
        asked[joining], texts[joining], truths[joining] = (sampling, count), list(first.tokens), truth
        check(first, asked[joining])
    accepted = 0
    for _ in range(5):
        windows = [Window(h, *window(chance, truths[h][len(texts[h]) :][:6])) for h in texts]
        for handle, outcome in zip(list(texts), target.verify(windows), strict=True):
            check(outcome, asked[handle])
            accepted += len(outcome.path)
            texts[handle] += outcome.tokens
    assert accepted > 10
    assert all(text[:45] == truths[h][: len(text[:45])] for h, text in texts.items())


def check(outcome, asked):
    _, count = asked
    if not count:
        assert outcome.likeliest is None
        return
    assert outcome.likeliest.ids.shape == (len(outcome.tokens), count)
    same(outcome.likeliest, outcome.logprobs)


@pytest.mark.parametrize("rows", [[3], [1, 2, 3], [0, 2, 7], [5, 1]])
@pytest.mark.parametrize("size", [40, 1000])
def test_any_rows_of_logits_that_do_not_lie_one_behind_the_other_can_be_asked_for(rows, size, way):
    logits = torch.randn(8, size + 3, generator=torch.Generator().manual_seed(1))[:, :size] * 4
    same(likeliest(logits, rows, TOP), logprobs(logits[rows], [0] * len(rows), TOP))


def test_a_vocabulary_of_fewer_gives_all_of_it(way):
    found = likeliest(torch.tensor([[0.0, 2.0, 1.0]]), [0], TOP)
    assert found.ids.tolist() == [[1, 2, 0]] and found.probabilities.sum() == pytest.approx(1.0)
