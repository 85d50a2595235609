"""Rounds that are recorded and replayed, against the same rounds run as usual. A tape stands in for CUDA graphs: it
holds every operation with the Python values and the memory of its recording (see tape.py)."""

import logging
import random

import numpy as np
import pytest
import torch
from tape import TapeRecorder
from test_llama import BUNDLED, OURS, SLOTS, chain, close, ids, load, plain
from tiny import VOCAB, info, make
from torch.utils._python_dispatch import TorchDispatchMode

from actors.engines.backends.llama import engine as fused
from actors.engines.backends.llama import gathered, graphs
from actors.engines.backends.llama.engine import LlamaEngine
from actors.engines.backends.llama.folded_attention import attend_folded
from actors.engines.backends.llama.gathered import Gathered
from actors.engines.backends.llama.graphs import Direct
from actors.engines.backends.llama.inbox import Inbox
from actors.engines.flat_batch import FlatBatch, align, causal
from actors.engines.selfcheck import ROWS
from actors.engines.target import Target
from actors.models import Window
from actors.tree.accept import depths_of
from protocols.messages import Sampling

DTYPES = [torch.float32, torch.bfloat16]
MODELS = [("bundled", torch.float32), ("llama", torch.float32), ("qwen3", torch.bfloat16), ("qwen2", torch.bfloat16)]


@pytest.fixture(autouse=True)
def torch_alone(monkeypatch):
    """What is recorded are torch's operations; compiled kernels have bits of their own."""
    torch.set_num_threads(1)
    monkeypatch.setattr(fused, "compiled_kernels", lambda: None)


def pair_of(name: str, dtype: torch.dtype, slots: int = 2048) -> list[LlamaEngine]:
    """A model as it runs on a CPU, and the same one recorded."""
    engines = []
    for recorder in (None, TapeRecorder()):
        model = load("target", dtype) if name == "bundled" else make(name).to(dtype)
        details = BUNDLED if name == "bundled" else info(model)
        engines.append(LlamaEngine(model, details, slots, recorder=recorder))
    return engines


def recorded(family="llama", slots=SLOTS, recorder=None) -> LlamaEngine:
    model = make(family)
    return LlamaEngine(model, info(model), slots, recorder=recorder or TapeRecorder())


def lay_out(batch: FlatBatch, base: int, length: int, tokens, parents) -> None:
    """The root at ``length - 1`` and a tree behind it, as the target lays them out."""
    root, rows = length - 1, 1 + len(parents)
    visible = np.zeros((rows, align(root + rows)), dtype=bool)
    visible[:, :length] = True
    for row, parent in enumerate(parents, 1):
        visible[row, length:] = visible[parent + 1, length:]
        visible[row, root + row] = True
    positions = [root, *(root + depth for depth in depths_of(parents))]
    slots = list(range(base + root, base + root + rows))
    batch.add(base, tokens, positions, slots, visible)


def tree_round(engine, base: int, length: int, tokens, parents) -> torch.Tensor:
    lay_out(batch := FlatBatch(), base, length, tokens, parents)
    return engine.forward(batch)


def fill(engine, base: int, tokens) -> None:
    places, batch = range(len(tokens)), FlatBatch()
    batch.add(base, tokens, places, [base + p for p in places], causal(0, len(tokens)))
    engine.forward(batch, [len(tokens) - 1])


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
    unpack, look = Inbox.unpack, Gathered.unpack

    def rows_baked(self, shape):
        start = int(self._host[: 12 * shape.rows].view(np.int32)[shape.rows])
        return unpack(self, shape)._replace(positions=torch.arange(shape.rows) + start)

    def look_baked(self, shape, told):
        out = look(self, shape, told)
        of = next(each for each in (engine, usual) if each.graphs.layout is self)
        host = of.graphs._inbox._host[12 * shape.rows :]
        if what == "base":
            return out._replace(bases=torch.full((1,), int(host[:4].view(np.int32)[0])))
        seen = int(np.unpackbits(host[shape.header :][: shape.span // 8]).sum())
        sees = torch.arange(shape.span)[None] < torch.arange(seen, seen + shape.rows)[:, None]
        return out._replace(sees=sees[None])

    if what == "positions":
        monkeypatch.setattr(Inbox, "unpack", rows_baked)
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


def test_reading_from_the_host_cannot_be_recorded(monkeypatch, caplog):
    honest = Inbox.unpack

    def reading(self, shape):
        out = honest(self, shape)
        assert out.tokens[0].item() >= 0
        return out

    monkeypatch.setattr(Inbox, "unpack", reading)
    engine = recorded()
    chain(engine, ids(4), 0, 4)
    assert "goes through the host" in caplog.text


@pytest.mark.parametrize("family", OURS)
@pytest.mark.parametrize("attention", [gathered.attend_as_eager, attend_folded])
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


def test_what_a_round_hands_back_outlives_the_next():
    engine = recorded()
    tokens = ids(20)
    first = chain(engine, tokens, 0, 4)
    kept = first.clone()
    chain(engine, tokens, 4, 4)
    assert torch.equal(first, kept)


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
    assert engine.pool.slots == SLOTS and len(engine.pool.positions) == SLOTS


def test_what_is_no_round_runs_as_usual():
    model = make("qwen2")
    engine, usual = recorded("qwen2"), LlamaEngine(model, info(model), SLOTS)
    a, b = ids(9, seed=5), ids(2, seed=6)
    several, chosen, large = FlatBatch(), FlatBatch(), FlatBatch()
    several.add(0, a, range(9), range(9), causal(0, 9))
    several.add(128, b, range(2), [128, 129], causal(0, 2), prompt=True)
    chosen.add(0, a, range(9), range(9), causal(0, 9))
    large.add(0, ids(65), range(65), range(65), causal(0, 65))
    for batch, select in ((several, None), (chosen, [8]), (large, None)):
        assert torch.equal(engine.forward(batch, select), usual.forward(batch, select))
        assert engine.best is None
    assert len(engine.graphs) == 0


def test_one_request_in_a_batch_of_more_rows_than_a_window_has_runs_as_usual():
    engine, usual = recorded(), LlamaEngine(make("llama"), info(make("llama")), SLOTS)
    batch = FlatBatch()
    batch.add(0, [5, 6], [0, 1], [0, 1], causal(0, 2))
    batch.add(64, [0] * 98, [0] * 98, range(64, 162), np.eye(98, 128, dtype=bool), padding=True)
    assert torch.equal(engine.forward(batch)[:2], usual.forward(batch)[:2])
    assert engine.best is None and len(engine.graphs) == 0


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
    engine = recorded(slots=1024)
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


@pytest.mark.parametrize("rows_agree", [ROWS, (8, 16, 32)])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
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


def test_a_capture_that_fails_costs_one_warning_and_no_bit(caplog):
    class Failing(TapeRecorder):
        def capture(self, program):
            self.replays += 1
            program()
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    recorder = Failing()
    engine, usual = recorded(recorder=recorder), recorded()
    with caplog.at_level(logging.WARNING):
        for start, rows in ((0, 4), (4, 1), (5, 8), (13, 1)):
            assert torch.equal(chain(engine, ids(30), start, rows), chain(usual, ids(30), start, rows))
    assert recorder.replays == 1
    [record] = caplog.records
    assert "without CUDA graphs" in record.message and "\n" not in record.message


def test_the_oldest_recordings_make_room_and_come_back_when_needed(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    engine = recorded()
    tokens, made = ids(40), engine.graphs._recorder.tapes
    for start, rows, count in ((0, 16, 1), (16, 8, 2), (24, 8, 2), (32, 4, 3), (20, 8, 3), (0, 16, 4)):
        chain(engine, tokens, start, rows)
        assert len(made) == count and len(engine.graphs) <= 2


def test_a_new_table_of_rotations_is_read_by_new_recordings(monkeypatch):
    monkeypatch.setattr(fused, "TURNS", 16)
    model = make("llama")
    details = info(model)
    short = type(details)(details.model_id, details.vocab_size, 16, details.eos_token_ids, details.tokenizer_digest)
    engine = LlamaEngine(model, short, SLOTS, recorder=TapeRecorder())
    tokens = ids(40)
    out = torch.cat([chain(engine, tokens, start, 8) for start in range(0, 40, 8)])
    close(out, plain("llama", tokens))
    assert len(engine.graphs._recorder.tapes) == 3  # for tables of 16, 32 and 64 positions


def test_tables_are_made_as_long_as_the_context_so_that_recordings_last():
    assert len(recorded(slots=256)._turns) == fused.TURNS
    assert recorded().graphs is not None
    assert LlamaEngine(make("llama"), info(make("llama")), SLOTS).graphs is None


def test_the_program_stays_on_its_device():
    with torch.device("meta"):
        nowhere = make("llama")
    engine = LlamaEngine(nowhere, info(nowhere), SLOTS, recorder=Direct())
    engine.graphs.layout.attention = attend_folded
    out = chain(engine, ids(4), 0, 4)
    assert out.device.type == "meta" and out.shape == (4, VOCAB) and engine.best.device.type == "meta"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [30, 120, 250])
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
