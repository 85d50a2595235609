"""Rounds that are recorded and replayed, against the same rounds run as usual."""

import random
from itertools import cycle

import numpy as np
import pytest
import torch

from actors.engines.decoder.engine import LlamaEngine
from actors.engines.decoder.gpu import gathered
from actors.engines.decoder.gpu.folded_attention import attend_folded
from actors.engines.decoder.gpu.gathered import Gathered
from actors.engines.decoder.gpu.graphs import Direct
from actors.engines.decoder.gpu.round_buffer import RoundBuffer
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.recorded_rounds import MODELS, fill, pair_of, recorded, torch_alone, tree_round  # noqa: F401
from tests.engines.tape import TapeRecorder
from tests.engines.test_llama import OURS, SLOTS, chain, close, ids, plain
from tests.engines.tiny import VOCAB, info, make


@pytest.mark.parametrize("name, dtype", MODELS)
def test_a_replayed_chain_has_the_bits_of_an_eager_one_at_every_length(name, dtype):
    eager, graphed = pair_of(name, dtype)
    tokens = ids(560)
    starts = (117, 125, 128, 190, 250, 255, 256, 300, 505, 512)
    for engine in (eager, graphed):
        fill(engine, 0, tokens[:520])
    for n, start in enumerate(starts):
        for rows in ((1, 5), (2, 16), (3, 12), (4, 33), (8,))[n % 5]:
            found = chain(graphed, tokens, start, rows)
            assert torch.equal(found, chain(eager, tokens, start, rows)), (start, rows)
            assert torch.equal(graphed.best, found.argmax(-1).int())
    recorder = graphed.graphs._recorder
    assert recorder.replays == 18 and len(graphed.graphs) == len(recorder.tapes) < recorder.replays


def test_the_bundled_target_in_bfloat16_has_the_same_bits_when_replayed():
    eager, graphed = pair_of("bundled", torch.bfloat16, 512)
    tokens = ids(270)
    for engine in (eager, graphed):
        fill(engine, 0, tokens)
    for start, rows in ((252, 1), (252, 4), (254, 3), (256, 1)):
        assert torch.equal(chain(graphed, tokens, start, rows), chain(eager, tokens, start, rows)), (start, rows)


@pytest.mark.parametrize("name, dtype", MODELS)
def test_a_recording_of_one_request_serves_another_of_any_base_length_and_tree(name, dtype):
    eager, graphed = pair_of(name, dtype)
    chance = random.Random(0)
    texts = {base: ids(n, seed=base) for base, n in ((64, 30), (448, 250), (1024, 118), (1472, 500))}
    for base, text in texts.items():
        for engine in (eager, graphed):
            fill(engine, base, text)
    for turn in range(12):
        base, text = chance.choice(list(texts.items()))
        nodes = chance.choice([0, 3, 7, 7, 7, 12])
        parents = [chance.randrange(-1, node) for node in range(nodes)]
        tokens = [text[-1], *(chance.randrange(VOCAB) for _ in parents)]
        found, expected = (tree_round(e, base, len(text), tokens, parents) for e in (graphed, eager))
        assert torch.equal(found, expected), (turn, base, parents)
        slots = slice(base, base + len(text) + 16)
        for ours, theirs in zip(graphed.pool.keys, eager.pool.keys, strict=True):
            assert torch.equal(ours[:, slots], theirs[:, slots])
    assert graphed.graphs._recorder.replays == 12 > len(graphed.graphs)


@pytest.mark.parametrize("what", ["base", "positions", "mask"])
def test_a_program_with_something_baked_in_is_found_out(what, monkeypatch):
    """The test of the test above: python values of the recorded round would be those of every later one."""
    engine, usual = recorded(), recorded(recorder=Direct())
    unpack, look = RoundBuffer.unpack, Gathered.unpack

    def rows_baked(self, shape):
        start = int(self._host[: 12 * shape.rows].view(np.int32)[shape.rows])
        return unpack(self, shape)._replace(positions=torch.arange(shape.rows) + start)

    def look_baked(self, shape, told):
        out = look(self, shape, told)
        of = next(each for each in (engine, usual) if each.graphs.layout is self)
        host = of.graphs._buffer._host[12 * shape.rows :]
        if what == "base":
            return out._replace(bases=torch.full((1,), int(host[:4].view(np.int32)[0])))
        seen = int(np.unpackbits(host[shape.header :][: shape.span // 8]).sum())
        sees = torch.arange(shape.span)[None] < torch.arange(seen, seen + shape.rows)[:, None]
        return out._replace(sees=sees[None])

    if what == "positions":
        monkeypatch.setattr(RoundBuffer, "unpack", rows_baked)
    else:
        monkeypatch.setattr(Gathered, "unpack", look_baked)
    a, b = ids(20), ids(31, seed=1)
    for each in (engine, usual):
        fill(each, 0, a)
        fill(each, 128, b)
    first = [tree_round(e, 0, 20, [a[-1], 7], [-1]) for e in (engine, usual)]
    assert torch.equal(*first)
    second = [tree_round(e, 128, 31, [b[-1], 9], [-1]) for e in (engine, usual)]
    assert not torch.equal(*second)


@pytest.mark.parametrize(
    ("family", "attention"), [*zip(OURS, cycle([attend_folded, gathered.attend_as_eager]), strict=False)]
)
def test_every_family_agrees_with_the_plain_model_when_replayed(family, attention):
    tokens = ids(300)
    engine = recorded(family)
    engine.graphs.layout.attention = attention
    outs, start = [], 0
    for rows in (64, 64, 64, 50, 1, 2, 5, 9, 30, 1, 10):
        outs.append(chain(engine, tokens, start, rows))
        start += rows
    close(torch.cat(outs), plain(family, tokens))
    assert engine.graphs._recorder.replays == 11


def test_a_window_may_lie_at_the_very_end_of_the_pool():
    engine, usual = recorded(), LlamaEngine(make("llama"), info(make("llama")), SLOTS)
    text = ids(40)
    for each in (engine, usual):
        fill(each, SLOTS - 64, text)
    found, expected = (tree_round(e, SLOTS - 64, 40, [text[-1], 5, 6], [-1, 0]) for e in (engine, usual))
    assert torch.equal(found, expected)


def test_padding_rows_write_behind_the_pool_and_nowhere_else():
    engine = recorded()
    chain(engine, ids(5), 0, 5)
    for keys in engine.pool.keys:
        used = keys.any(-1).any(0)
        assert used[:5].all() and not used[5:SLOTS].any() and used[SLOTS:].any()
    assert engine.pool.slots == SLOTS


@pytest.mark.parametrize(("temperature", "rows_agree"), [(0.0, (8, 16, 32)), (0.9, ROWS)])
def test_speculated_text_is_plain_text_and_that_of_an_engine_without_graphs(temperature, rows_agree):
    prompt, count = ids(200, seed=4), 80
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=count + 20, ignore_eos=True)
    usual = Target(LlamaEngine(make("llama"), info(make("llama")), 2048), rows_agree=rows_agree)
    target = Target(recorded(slots=2048), rows_agree=rows_agree)

    def begin(of):
        handle = of.open(prompt, sampling)
        while (outcome := of.prefill(handle)) is None:
            pass
        return handle, list(outcome.tokens)

    texts = []
    for of in (usual, target):
        handle, text = begin(of)
        while len(text) < count:
            text += of.verify([Window(handle)])[0].tokens
        of.close(handle)
        texts.append(text[:count])
    assert texts[0] == texts[1]
    of, chance = target, random.Random(1)
    spacer = of.open(ids(50), sampling)  # so that the same text lies elsewhere
    handle, text = begin(of)
    of.close(spacer)
    while len(text) < count:
        tokens, parents, at = [], [], -1
        for true in texts[0][len(text) : len(text) + chance.randrange(6)]:
            for token in {(true + 1) % VOCAB, true} if chance.random() < 0.5 else [true]:
                tokens.append(token)
                parents.append(at)
            at = tokens.index(true, len(tokens) - 2 if len(tokens) > 1 else 0)
        text += of.verify([Window(handle, tokens, parents)])[0].tokens
    assert text[:count] == texts[0]
    assert len(of.engine.graphs) >= 3 and of.engine.graphs._recorder.replays > count


@pytest.mark.parametrize(("length", "dtype"), [(30, torch.float32), (120, torch.bfloat16), (250, torch.float32)])
def test_every_branch_has_the_bits_of_a_chain_with_the_attention_of_a_gpu(length, dtype):
    model = make("qwen3").to(dtype)
    engine = LlamaEngine(model, info(model), SLOTS, recorder=TapeRecorder())
    engine.graphs.layout.attention = attend_folded
    text, chance = ids(length + 12), random.Random(length)
    fill(engine, 64, text[:length])
    expected = chain_at(engine, 64, text, length - 1)
    for _ in range(4):
        tokens, parents, at, rows = [text[length - 1]], [], -1, [0]
        for token in text[length:]:
            for listed in sorted((token, (token + 1) % VOCAB), reverse=chance.random() < 0.5):
                tokens.append(listed)
                parents.append(at)
            at = len(tokens) - 3 + tokens[-2:].index(token)
            rows.append(at + 1)
        found = tree_round(engine, 64, length, tokens, parents)
        assert torch.equal(found[rows], expected)


def chain_at(engine, base: int, text, start: int) -> torch.Tensor:
    return tree_round(engine, base, start + 1, text[start:], range(-1, len(text) - start - 2))
