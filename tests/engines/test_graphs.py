"""Rounds that are recorded and replayed, against the same rounds launched one operation after the other."""

import logging
import random

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.decoder.gpu.graphs import Direct
from actors.engines.decoder.gpu.in_place import InPlace
from actors.engines.decoder.gpu.round_buffer import RoundBuffer
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.recorded_rounds import TEXTS, fill, recorded, some_trees, together, tree_round
from tests.engines.tape import TapeRecorder
from tests.engines.test_llama import OURS, SLOTS, chain, close, ids, plain
from tests.engines.tiny import VOCAB, info, make

MODELS = [("llama", torch.float32), ("qwen3", torch.bfloat16), ("qwen2", torch.bfloat16)]


def usual_engine(family="llama", slots=SLOTS) -> GpuEngine:
    model = make(family)
    return GpuEngine(model, info(model), slots)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("name, dtype", MODELS)
def test_a_recording_of_some_requests_serves_others_of_any_base_length_and_tree(name, dtype):
    engines = [recorded(name, 2048, recorder, dtype) for recorder in (Direct(), TapeRecorder())]
    for base, text in TEXTS.items():
        for engine in engines:
            fill(engine, base, text)
    chance, (direct, graphed) = random.Random(1), engines
    for turn in range(16):
        count = chance.randrange(1, 5)
        parts = list(some_trees(chance, chance.sample(list(TEXTS), count), (1, 4)[turn % 2]))
        found, expected = (together(engine, parts) for engine in (graphed, direct))
        assert torch.equal(found, expected), (turn, parts)
        assert torch.equal(graphed.best, found.argmax(-1).int())
        for base, length, tokens, _ in parts:
            slots = slice(base, base + length + len(tokens))
            for ours, theirs in zip(graphed.pool.keys, direct.pool.keys, strict=True):
                assert torch.equal(ours[:, slots], theirs[:, slots])
    assert graphed.graphs._recorder.replays == 16 > len(graphed.graphs)


@pytest.mark.parametrize("what", ["bases", "positions"])
def test_a_program_with_something_baked_in_is_found_out(what, monkeypatch):
    """The test of the test above: python values of the recorded round would be those of every later one."""
    engine, usual = recorded(), recorded(recorder=Direct())
    unpack, look = RoundBuffer.unpack, InPlace.unpack

    def rows_baked(self, rows, states):
        start = int(self._host[: 12 * rows].view(np.int32)[rows])
        return unpack(self, rows, states)._replace(positions=torch.arange(rows) + start)

    def look_baked(rows, told):
        count, starts, bases, *rest = look(rows, told)
        of = next(
            each for each in (engine, usual) if told.data_ptr() == each.graphs._buffer._device[12 * rows :].data_ptr()
        )
        base = int(of.graphs._buffer._host[12 * rows :].view(np.int32)[1 + rows])
        return count, starts, torch.full_like(bases, base), *rest

    if what == "positions":
        monkeypatch.setattr(RoundBuffer, "unpack", rows_baked)
    else:
        monkeypatch.setattr(InPlace, "unpack", staticmethod(look_baked))
    a, b = ids(20), ids(31, seed=1)
    for each in (engine, usual):
        fill(each, 0, a)
        fill(each, 128, b)
    first = [tree_round(e, 0, 20, [a[-1], 7], [-1]) for e in (engine, usual)]
    assert torch.equal(*first)
    second = [tree_round(e, 128, 31, [b[-1], 9], [-1]) for e in (engine, usual)]
    assert not torch.equal(*second)


@pytest.mark.parametrize("family", OURS)
def test_every_family_agrees_with_the_plain_model_when_replayed_and_as_usual(family):
    tokens = ids(300)
    for engine in (recorded(family), usual_engine(family)):
        outs, start = [], 0
        for rows in (64, 64, 64, 50, 1, 2, 5, 9, 30, 1, 10):
            outs.append(chain(engine, tokens, start, rows))
            start += rows
        close(torch.cat(outs), plain(family, tokens))
        assert engine.graphs is None or engine.graphs._recorder.replays == 11


def test_rounds_keep_the_states_of_the_layers_that_are_tapped_now_whatever_was_tapped_before():
    graphed, direct = recorded(slots=64), recorded(slots=64, recorder=Direct())
    text, told = ids(20), []
    for layers in ((0, 1), (1, 2), (0, 1)):
        for engine in (graphed, direct):
            engine.tap(layers)
            fill(engine, 0, text)
            tree_round(engine, 0, 20, [text[-1], 7], [-1])
        assert torch.equal(graphed.tapped, direct.tapped)
        told.append(graphed.tapped.clone())
    assert torch.equal(told[0], told[2]) and not torch.equal(told[0], told[1]) and told[0].any()


def test_padding_rows_write_behind_the_pool_and_nowhere_else():
    engine = recorded()
    chain(engine, ids(5), 0, 5)
    for keys in engine.pool.keys:
        used = keys.any(-1).any(0)
        assert used[:5].all() and not used[5:SLOTS].any() and used[SLOTS:].any()
    assert engine.pool.slots == SLOTS


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_speculated_text_is_plain_text_and_that_of_an_engine_without_graphs(temperature):
    prompt, count = ids(150, seed=4), 50
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=count + 20, ignore_eos=True)
    usual = Target(usual_engine(slots=640), rows_agree=ROWS)
    target = Target(recorded(slots=640), rows_agree=ROWS)

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


def test_reading_from_the_host_cannot_be_recorded(monkeypatch, caplog):
    honest = RoundBuffer.unpack

    def reading(self, rows, states):
        out = honest(self, rows, states)
        assert out.tokens[0].item() >= 0
        return out

    monkeypatch.setattr(RoundBuffer, "unpack", reading)
    engine = recorded()
    chain(engine, ids(4), 0, 4)
    assert "goes through the host" in caplog.text


def test_what_a_round_hands_back_outlives_the_next():
    engine = recorded()
    tokens = ids(20)
    first = chain(engine, tokens, 0, 4)
    kept = first.clone()
    chain(engine, tokens, 4, 4)
    assert torch.equal(first, kept)


def test_a_forward_that_is_no_round_is_not_recorded():
    engine, usual = recorded("qwen2"), usual_engine("qwen2")
    a, b = ids(9, seed=5), ids(2, seed=6)
    several, chosen, large, wide = FlatBatch(), FlatBatch(), FlatBatch(), FlatBatch()
    several.add(0, a, range(9), range(9), causal(0, 9))
    several.add(128, b, range(2), [128, 129], causal(0, 2)).prompt = True
    chosen.add(0, a, range(9), range(9), causal(0, 9))
    large.add(0, ids(65), range(65), range(65), causal(0, 65))
    wide.add(0, [5, 6], [0, 1], [0, 1], causal(0, 2))  # in a batch of more rows than a window has
    wide.add(64, [0] * 98, [0] * 98, range(64, 162), np.eye(98, 128, dtype=bool)).padding = True
    for batch, select in ((several, None), (chosen, [8]), (large, None), (wide, None)):
        assert torch.equal(engine.forward(batch, select), usual.forward(batch, select))
        assert engine.best is None
    assert len(engine.graphs) == 0


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func).split(".")[1])
        return func(*args, **(kwargs or {}))


def test_a_round_is_one_copy_in_and_one_replay():
    class Silent(TapeRecorder):
        def capture(self, program):
            super().capture(program)
            return lambda: None

    engine, tokens = recorded(recorder=Silent()), ids(20)
    chain(engine, tokens, 0, 4)
    with Operations() as seen:
        chain(engine, tokens, 4, 4)
    assert [name for name in seen.names if name not in ("slice", "alias", "detach")] == ["copy_", "clone"]


def test_a_greedy_round_reads_the_chosen_tokens_and_no_logits():
    engine = recorded(slots=256)
    honest = engine.forward

    def without_logits(*arguments):
        logits = honest(*arguments)
        return logits if engine.best is None else torch.full_like(logits, torch.nan)

    texts = []
    for forward in (honest, without_logits):
        engine.forward = forward
        target = Target(engine, rows_agree=ROWS)
        handle = target.open(ids(9), Sampling(temperature=0.0, max_tokens=40, ignore_eos=True))
        text = target.prefill(handle).tokens
        for _ in range(10):
            text += target.verify([Window(handle)])[0].tokens
        texts.append(text)
    assert texts[0] == texts[1] and len(set(texts[0])) > 1


def test_a_capture_that_fails_costs_one_warning_and_no_bit(caplog):
    class Failing(TapeRecorder):
        def capture(self, program):
            self.replays += 1
            program()
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    recorder = Failing()
    engine, usual = recorded(recorder=recorder), recorded()
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        for start, rows in ((0, 4), (4, 1), (5, 8), (13, 1)):
            assert torch.equal(chain(engine, ids(30), start, rows), chain(usual, ids(30), start, rows))
    assert recorder.replays == 1
    [record] = caplog.records
    assert "without CUDA graphs" in record.message and "\n" not in record.message
