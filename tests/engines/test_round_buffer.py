"""What a recorded round reads: its numbers and what its attention is told in one copy."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from actors.engines.decoder.gpu.engine import GpuEngine
from actors.engines.decoder.gpu.graphs import Direct, Graphs
from actors.engines.decoder.gpu.in_place import InPlace
from actors.engines.decoder.gpu.round_buffer import RoundBuffer
from actors.engines.flat_batch import FlatBatch, Segment
from tests.engines.recorded_rounds import lay_out
from tests.engines.tiny import VOCAB, info, make


@pytest.fixture(scope="module")
def engine():
    model = make("llama")
    return GpuEngine(model, info(model), 4096)


def arrived(plan, tokens, positions, slots, spare=4096):
    """What the device finds, where an earlier round's bytes lay."""
    inbox = RoundBuffer(plan.bytes + 100, torch.device("cpu"))
    inbox._host[:] = 255
    inbox.send(plan, tokens, positions, slots, spare)
    return inbox.unpack(plan.rows)


def fork(length: int, seen: int) -> np.ndarray:
    """The root behind so many tokens, and two children that do not see each other."""
    visible = np.tril(np.ones((3, seen), dtype=bool), k=length)
    visible[2, length + 1] = False
    return visible


def three_requests() -> list[Segment]:
    return [
        Segment(1, 0, 64, np.arange(64)[None] < 40),
        Segment(3, 1000, 320, fork(250, 320)),
        Segment(1, 2000, 128, np.arange(128)[None] < 70),
    ]


def kernels(tile: int, split: int = 128) -> SimpleNamespace:
    return SimpleNamespace(SPLIT=split, tile_rows=lambda heads, kv_heads: tile, Partial=lambda *sizes: None)


def test_in_place_rows_are_told_how_far_their_slots_are_in_a_row_and_where_the_others_are(engine):
    layout = InPlace(engine._program.spec, engine.pool, engine._exact, kernels(tile=2), gpu=None)
    plan = layout.plan(8, three_requests())
    assert plan.rows == 8
    sent = arrived(plan, [5, 1, 2, 3, 6], [39, 250, 251, 251, 69], [39, 1250, 1251, 1252, 2069])
    count, starts, bases, prefixes, lengths, tails, items = layout.unpack(plan.rows, sent.told)
    # the first part of 251 tokens is computed for two rows at once
    assert count.tolist() == [7]
    assert items[:7].tolist() == [[0, 1, 0], [1, 2, 0], [1, 1, 1], [2, 1, 1], [3, 1, 0], [3, 1, 1], [4, 1, 0]]
    assert starts.tolist() == [0, 1, 3, 5, 7, 0, 0, 0]
    assert bases.tolist() == [0, 1000, 1000, 1000, 2000, 0, 0, 0]
    assert prefixes.tolist() == [40, 251, 252, 251, 70, 0, 0, 0]
    assert lengths.tolist() == [40, 251, 252, 252, 70, 0, 0, 0]
    assert tails[3, 0] == 1252


def test_the_tail_of_a_drafts_node_lies_in_front_of_its_text():
    model = make("llama")
    engine = GpuEngine(model, info(model), 4096, exact=False)
    layout = InPlace(engine._program.spec, engine.pool, engine._exact, kernels(tile=2), gpu=None)
    visible = np.zeros((2, 256), dtype=bool)
    visible[:, 64:200] = True  # the text; nodes in the slots before it
    visible[0, [0, 63]] = visible[1, 5] = True
    plan = layout.plan(2, [Segment(2, 1000, 256, visible)])
    told = arrived(plan, [1, 2], [9, 9], [5, 6]).told
    count, starts, bases, prefixes, lengths, tails, items = layout.unpack(plan.rows, told)
    assert items[: int(count)].tolist() == [[0, 2, 0], [0, 1, 1], [1, 1, 1]]
    assert (starts.tolist(), bases.tolist(), prefixes.tolist()) == ([0, 2], [1064, 1064], [136, 136])
    assert lengths.tolist() == [138, 137] and tails[0, :2].tolist() == [1000, 1063] and tails[1, 0] == 1005


def test_in_place_every_part_of_every_row_is_in_one_item(engine):
    layout = InPlace(engine._program.spec, engine.pool, engine._exact, kernels(tile=4, split=16), gpu=None)
    chance = random.Random(0)
    for _ in range(60):
        batch, base = FlatBatch(), 0
        for _ in range(chance.randrange(1, 4)):
            parents = [chance.randrange(-1, node) for node in range(chance.randrange(12))]
            length = chance.randrange(1, 200)
            lay_out(batch, base, length, [1] * (1 + len(parents)), parents)
            base += 256
        plan = layout.plan(64, batch.segments)
        done = [(first + row, part) for first, count, part in plan.items.tolist() for row in range(count)]
        starts, _, prefixes, lengths = plan.numbers
        parts = -(-lengths // 16)
        assert sorted(done) == [(row, part) for row, count in enumerate(parts.tolist()) for part in range(count)]
        assert starts.tolist() == [int(parts[:row].sum()) for row in range(len(parts))]
        for first, count, part in plan.items.tolist():
            assert count == 1 or prefixes[first : first + count].min() >= 16 * (part + 1)


def test_in_place_rounds_of_too_many_parts_run_as_usual(engine):
    layout = InPlace(engine._program.spec, engine.pool, engine._exact, kernels(tile=4), gpu=None)
    text = Segment(1, 0, 3200, np.arange(3200)[None] < 3100)
    assert layout.plan(1, [text]).rows == 1
    assert layout.plan(1024, [text] * 700) is None


def test_what_a_smaller_round_is_told_leaves_nothing_of_a_larger_one(engine):
    layout = InPlace(engine._program.spec, engine.pool, engine._exact, kernels(tile=4), gpu=None)
    larger, smaller = layout.plan(8, three_requests()), layout.plan(8, three_requests()[:1])
    host = np.zeros(layout.bytes, dtype=np.uint8)
    for plan in (larger, smaller):
        plan.pack(host[: plan.bytes])
    count, starts, bases, prefixes, lengths, _, items = layout.unpack(smaller.rows, torch.from_numpy(host))
    assert (count.tolist(), items[0].tolist()) == ([1], [0, 1, 0])
    assert all(not numbers[1:].any() for numbers in (starts, bases, prefixes, lengths))


def test_the_usual_rounds_are_recorded_before_the_first(engine, monkeypatch):
    layout = InPlace(engine._program.spec, engine.pool, engine._exact, kernels(tile=4), gpu=None)
    monkeypatch.setattr(layout, "attend", lambda queries, *rest: queries.flatten(1))
    graphs = Graphs(engine._program, Direct(), VOCAB, layout)
    graphs.record_ahead()
    assert len(graphs) == 12  # 1, 2, 4, ... 256 rows, and prompts of three sizes
