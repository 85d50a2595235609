"""Rounds of several requests, recorded and replayed, against the same rounds run as usual: see recorded_rounds.py."""

import random

import pytest
import torch

from actors.engines.decoder.engine import LlamaEngine
from actors.engines.decoder.gpu import gathered
from actors.engines.decoder.gpu.folded_attention import attend_folded
from actors.engines.flat_batch import FlatBatch
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.recorded_rounds import MODELS, fill, lay_out, pair_of, recorded, torch_alone  # noqa: F401
from tests.engines.tape import TapeRecorder
from tests.engines.test_llama import ids
from tests.engines.tiny import VOCAB, info, make

TEXTS = {base: ids(n, seed=base) for base, n in ((64, 30), (448, 250), (1024, 118), (1472, 500))}


def together(engine, parts) -> torch.Tensor:
    """One forward of trees ``(base, length, tokens, parents)``."""
    batch = FlatBatch()
    for part in parts:
        lay_out(batch, *part)
    return engine.forward(batch)


def some_trees(chance: random.Random, bases, most: int):
    for base in bases:
        parents = [chance.randrange(-1, node) for node in range(chance.randrange(most))]
        yield base, len(TEXTS[base]), [TEXTS[base][-1], *(chance.randrange(VOCAB) for _ in parents)], parents


@pytest.mark.parametrize("name, dtype", MODELS)
def test_a_recording_of_some_requests_serves_others_of_any_base_length_and_tree(name, dtype):
    engines = pair_of(name, dtype)
    for base, text in TEXTS.items():
        for engine in engines:
            fill(engine, base, text)
    chance, (eager, graphed) = random.Random(1), engines
    for turn in range(16):
        parts = list(some_trees(chance, chance.sample(list(TEXTS), chance.randrange(2, 5)), (1, 4)[turn % 2]))
        found, expected = (together(engine, parts) for engine in (graphed, eager))
        assert torch.equal(found, expected), (turn, parts)
        assert torch.equal(graphed.best, found.argmax(-1).int())
        for base, length, tokens, _ in parts:
            slots = slice(base, base + length + len(tokens))
            for ours, theirs in zip(graphed.pool.keys, eager.pool.keys, strict=True):
                assert torch.equal(ours[:, slots], theirs[:, slots])
    assert graphed.graphs._recorder.replays == 16 > len(graphed.graphs)


def test_a_request_has_the_bits_that_it_has_alone():
    engine = recorded(slots=2048)
    engine.graphs.layout.attention = attend_folded
    for base, text in TEXTS.items():
        fill(engine, base, text)
    parts = list(some_trees(random.Random(2), TEXTS, 5))
    alone = torch.cat([together(engine, [part]) for part in parts])
    assert torch.equal(together(engine, parts), alone)


@pytest.mark.parametrize("limit", ["MAX_GATHERED", "MAX_SCORED"])
def test_rounds_that_would_copy_or_score_too_much_run_as_usual(limit, monkeypatch):
    monkeypatch.setattr(gathered, limit, 500)
    engine, usual = recorded(slots=2048), LlamaEngine(make("llama"), info(make("llama")), 2048)
    for each in (engine, usual):
        for base, text in TEXTS.items():
            fill(each, base, text)
    parts = [(64, 30, [TEXTS[64][-1]], []), (448, 250, [TEXTS[448][-1], 7], [-1])]
    assert torch.equal(together(engine, parts), together(usual, parts))
    assert engine.best is None and len(engine.graphs) == 0
    together(engine, parts[:1])
    assert len(engine.graphs) == 1  # of one request there is no such limit


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_streams_that_join_and_leave_have_the_texts_that_they_have_alone(temperature):
    prompts = [ids(20 + 37 * n, seed=n) for n in range(6)]
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=60, ignore_eos=True)
    target = Target(recorded(slots=4096, recorder=TapeRecorder()), rows_agree=ROWS)

    def begin(prompt):
        handle = target.open(prompt, sampling)
        while (outcome := target.prefill(handle)) is None:
            pass
        return handle, list(outcome.tokens)

    alone = []
    for prompt in prompts:
        handle, text = begin(prompt)
        while len(text) < 24:
            text += target.verify([Window(handle)])[0].tokens
        target.close(handle)
        alone.append(text)
    waiting, running, done, chance = list(enumerate(prompts)), {}, 0, random.Random(4)
    while waiting or running:
        if waiting and (len(running) < 2 or chance.random() < 0.3):
            number, prompt = waiting.pop()
            running[number] = begin(prompt)
        guesses = {n: alone[n][len(text) :][: chance.randrange(4)] for n, (_, text) in running.items()}
        windows = [
            Window(handle, guesses[n], list(range(-1, len(guesses[n]) - 1))) for n, (handle, _) in running.items()
        ]
        for (number, (handle, text)), outcome in zip(list(running.items()), target.verify(windows), strict=True):
            text += outcome.tokens
            if len(text) >= 24:
                assert text[:24] == alone[number]
                target.close(handle)
                del running[number]
                done += 1
    assert done == len(prompts)
    assert any(shape.streams > 2 for _, shape, _ in target.engine.graphs._replays)
