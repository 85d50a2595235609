"""What a recorded round reads: its size in buckets, and its numbers and what its attention is told in one copy."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from actors.engines.decoder.engine import LlamaEngine
from actors.engines.decoder.gpu.gathered import Gathered, GatheredShape, _GatheredPlan, copies_bucket, span_bucket
from actors.engines.decoder.gpu.graphs import Direct, Graphs
from actors.engines.decoder.gpu.in_place import InPlace
from actors.engines.decoder.gpu.round_buffer import RoundBuffer, power_bucket
from actors.engines.decoder.torch.branches import BLOCK, View
from actors.engines.flat_batch import FlatBatch, Segment
from tests.engines.recorded_rounds import lay_out
from tests.engines.tiny import info, make


@pytest.fixture(scope="module")
def body():
    model = make("llama")
    return LlamaEngine(model, info(model), 4096, recorder=Direct()).graphs.body


@pytest.fixture
def gathered(body):
    return Gathered(body)


def arrived(plan, tokens, positions, slots, spare=4096):
    """What the device finds, where an earlier round's bytes lay."""
    inbox = RoundBuffer(plan.bytes + 100, torch.device("cpu"))
    inbox._host[:] = 255
    inbox.send(plan, tokens, positions, slots, spare)
    return inbox.unpack(plan.shape)


def test_rows_spans_and_copies_are_rounded_up_to_buckets():
    assert [power_bucket(n) for n in (1, 2, 3, 5, 8, 9, 33, 64)] == [1, 2, 4, 8, 8, 16, 64, 64]
    assert [span_bucket(n) for n in (64, 256, 320, 832, 1024, 1088, 2048, 5000)] == [
        256, 256, 512, 1024, 1024, 2048, 2048, 8192,
    ]  # fmt: skip
    assert all(span_bucket(n) % BLOCK == 0 for n in range(1, 5000))
    assert [copies_bucket(8, n) for n in (0, 1, 4, 5, 14)] == [0, 4, 4, 16, 16]


@pytest.mark.parametrize(
    "count, rows, span, seen", [(1, 1, 256, 64), (3, 4, 512, 320), (5, 8, 256, 250), (64, 64, 512, 512)]
)
def test_what_is_packed_on_the_host_is_what_the_device_reads(count, rows, span, seen, gathered):
    chance = np.random.default_rng(count)
    visible = chance.random((count, seen)) < 0.5
    numbers = chance.integers(0, 1 << 31, (3, count))
    plan = _GatheredPlan(GatheredShape(rows, 1, rows, span, 0), [Segment(count, 12345, seen, visible)], [View(visible)])
    sent = arrived(plan, *numbers.tolist(), 2048)
    told = gathered.unpack(plan.shape, sent.told)
    repeat = [*range(count), *[count - 1] * (rows - count)]
    assert sent.tokens.tolist() == numbers[0][repeat].tolist()
    assert sent.positions.tolist() == numbers[1][repeat].tolist()
    assert sent.slots.tolist() == [*numbers[2].tolist(), *range(2048, 2048 + rows - count)]
    assert told.bases.tolist() == [12345] and told.sees.shape == (1, rows, span)
    assert told.apart is told.places is told.order is None
    assert torch.equal(told.sees[0, :, :seen], torch.from_numpy(visible[repeat])) and not told.sees[0, :, seen:].any()


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


def test_copies_and_their_order_are_packed_too(gathered):
    plan = gathered.plan(4, three_requests()[1:2])
    assert plan.shape == (4, 1, 4, 512, 2)
    told = gathered.unpack(plan.shape, arrived(plan, [1, 2, 3], [250, 251, 251], [1250, 1251, 1252]).told)
    assert told.bases.tolist() == [1000] and told.copies.shape == (1, 2 * BLOCK)
    assert told.copies[0, :124].tolist() == [*range(1128, 1251), 1252]
    assert told.order.tolist() == [[[0, 1, 2, 3], [0, 1, 2, 3], [0, 4, 2, 3], [0, 4, 2, 3]]]
    assert told.sees.shape == (1, 4, 512 + 2 * BLOCK) and told.sees[0].sum(1).tolist() == [251, 252, 252, 252]
    assert told.sees[0, 2, :128].all() and told.sees[0, 2, 512 : 512 + 124].all()


def test_several_requests_have_places_of_their_own_and_the_last_one_fills_up(gathered):
    plan = gathered.plan(8, three_requests())
    assert plan.shape == (8, 4, 4, 512, 2)
    slots = [39, 1250, 1251, 1252, 2069]
    sent = arrived(plan, [5, 1, 2, 3, 6], [39, 250, 251, 251, 69], slots)
    told = gathered.unpack(plan.shape, sent.told)
    assert sent.tokens.tolist() == [5, 1, 2, 3, 6, 6, 6, 6]
    assert sent.slots.tolist() == [*slots, 4096, 4097, 4098]
    assert told.bases.tolist() == [0, 1000, 2000, 2000]
    assert told.apart.view(4, 4).tolist() == [[0, 0, 0, 0], [1, 2, 3, 3], [4, 4, 4, 4], [4, 4, 4, 4]]
    assert told.places.tolist() == [0, 4, 5, 6, 8, 8, 8, 8]
    assert told.sees[:, 0].sum(-1).tolist() == [40, 251, 70, 70]
    assert told.order[1, 2].tolist() == [0, 4, 2, 3] and told.order[0, 2].tolist() == [0, 1, 2, 3]
    assert told.copies[1, :124].tolist() == [*range(1128, 1251), 1252]
    assert set(told.copies[0].tolist()) == {0} and set(told.copies[2].tolist()) == {2000}


def kernels(tile: int, split: int = 128) -> SimpleNamespace:
    return SimpleNamespace(SPLIT=split, tile_rows=lambda heads, kv_heads: tile, Partial=lambda *sizes: None)


def test_in_place_rows_are_told_how_far_their_slots_are_in_a_row_and_where_the_others_are(body):
    layout = InPlace(body, kernels(tile=2), gpu=None)
    plan = layout.plan(8, three_requests())
    assert plan.shape == (8,)
    sent = arrived(plan, [5, 1, 2, 3, 6], [39, 250, 251, 251, 69], [39, 1250, 1251, 1252, 2069])
    count, starts, bases, prefixes, lengths, tails, items = layout.unpack(plan.shape, sent.told)
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
    body = LlamaEngine(model, info(model), 4096, exact=False, recorder=Direct()).graphs.body
    layout = InPlace(body, kernels(tile=2), gpu=None)
    visible = np.zeros((2, 256), dtype=bool)
    visible[:, 64:200] = True  # the text; nodes in the slots before it
    visible[0, [0, 63]] = visible[1, 5] = True
    plan = layout.plan(2, [Segment(2, 1000, 256, visible)])
    told = arrived(plan, [1, 2], [9, 9], [5, 6]).told
    count, starts, bases, prefixes, lengths, tails, items = layout.unpack(plan.shape, told)
    assert items[: int(count)].tolist() == [[0, 2, 0], [0, 1, 1], [1, 1, 1]]
    assert (starts.tolist(), bases.tolist(), prefixes.tolist()) == ([0, 2], [1064, 1064], [136, 136])
    assert lengths.tolist() == [138, 137] and tails[0, :2].tolist() == [1000, 1063] and tails[1, 0] == 1005


def test_in_place_every_part_of_every_row_is_in_one_item():
    model = make("llama")
    body = LlamaEngine(model, info(model), 4096, recorder=Direct()).graphs.body
    layout = InPlace(body, kernels(tile=4, split=16), gpu=None)
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
        starts, _, prefixes, lengths = plan.rows
        parts = -(-lengths // 16)
        assert sorted(done) == [(row, part) for row, count in enumerate(parts.tolist()) for part in range(count)]
        assert starts.tolist() == [int(parts[:row].sum()) for row in range(len(parts))]
        for first, count, part in plan.items.tolist():
            assert count == 1 or prefixes[first : first + count].min() >= 16 * (part + 1)


def test_in_place_rounds_of_too_many_parts_run_as_usual(body):
    layout = InPlace(body, kernels(tile=4), gpu=None)
    text = Segment(1, 0, 3200, np.arange(3200)[None] < 3100)
    assert layout.plan(1, [text]).shape == (1,)
    assert layout.plan(1024, [text] * 700) is None


def test_what_a_smaller_round_is_told_leaves_nothing_of_a_larger_one(body):
    layout = InPlace(body, kernels(tile=4), gpu=None)
    larger, smaller = layout.plan(8, three_requests()), layout.plan(8, three_requests()[:1])
    host = np.zeros(layout.bytes, dtype=np.uint8)
    for plan in (larger, smaller):
        plan.pack(host[: plan.bytes])
    count, starts, bases, prefixes, lengths, _, items = layout.unpack(smaller.shape, torch.from_numpy(host))
    assert (count.tolist(), items[0].tolist()) == ([1], [0, 1, 0])
    assert all(not numbers[1:].any() for numbers in (starts, bases, prefixes, lengths))


def test_the_usual_rounds_are_recorded_before_the_first(body, monkeypatch):
    layout = InPlace(body, kernels(tile=4), gpu=None)
    monkeypatch.setattr(layout, "attend", lambda queries, *rest: queries.flatten(1))
    graphs = Graphs(body, Direct(), body.shape.vocabulary, False, layout)
    graphs.record_ahead(torch.zeros(4, body.shape.width // 2, dtype=torch.complex64))
    assert len(graphs) == 12  # 1, 2, 4, ... 256 rows, and prompts of three sizes
