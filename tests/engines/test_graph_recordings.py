"""When a round is recorded, what is replayed, and what that hands back."""

import logging

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from actors.engines.decoder import engine as fused
from actors.engines.decoder.engine import LlamaEngine
from actors.engines.decoder.gpu import graphs
from actors.engines.decoder.gpu.folded_attention import attend_folded
from actors.engines.decoder.gpu.graphs import Direct
from actors.engines.decoder.gpu.round_buffer import RoundBuffer
from actors.engines.flat_batch import FlatBatch, causal
from actors.engines.targets.selfcheck import ROWS
from actors.engines.targets.target import Target
from actors.models import Window
from protocols.messages import Sampling
from tests.engines.recorded_rounds import recorded, torch_alone  # noqa: F401
from tests.engines.tape import TapeRecorder
from tests.engines.test_llama import SLOTS, chain, close, ids, plain
from tests.engines.tiny import VOCAB, info, make


def test_reading_from_the_host_cannot_be_recorded(monkeypatch, caplog):
    honest = RoundBuffer.unpack

    def reading(self, shape):
        out = honest(self, shape)
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
