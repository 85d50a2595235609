"""What a recorded round reads: its size in buckets, and its numbers and masks packed into one copy."""

import numpy as np
import pytest
import torch

from actors.engines.backends.llama.inbox import Inbox, RoundShape, copies_bucket, power_bucket, span_bucket
from actors.engines.branches import BLOCK, View, view
from actors.engines.engine import Segment


def test_buckets_of_rows_and_spans():
    assert [power_bucket(n) for n in (1, 2, 3, 5, 8, 9, 33, 64)] == [1, 2, 4, 8, 8, 16, 64, 64]
    assert [span_bucket(n) for n in (64, 256, 320, 832, 1024, 1088, 2048, 5000)] == [
        256, 256, 512, 1024, 1024, 2048, 2048, 8192,
    ]  # fmt: skip
    assert all(span_bucket(n) % BLOCK == 0 for n in range(1, 5000))
    assert [copies_bucket(8, n) for n in (0, 1, 4, 5, 14)] == [0, 4, 4, 16, 16]


@pytest.mark.parametrize(
    "count, rows, span, seen", [(1, 1, 256, 64), (3, 4, 512, 320), (5, 8, 256, 250), (64, 64, 512, 512)]
)
def test_what_is_packed_on_the_host_is_what_the_device_reads(count, rows, span, seen):
    chance = np.random.default_rng(count)
    shape = RoundShape(rows, 1, rows, span, 0)
    inbox = Inbox(shape.bytes + 100, torch.device("cpu"))
    inbox._host[:] = 255  # an earlier round's
    visible = chance.random((count, seen)) < 0.5
    numbers = chance.integers(0, 1 << 31, (3, count))
    inbox.send(shape, *numbers.tolist(), [Segment(count, 12345, seen, visible)], [View(visible)], 2048)
    out = inbox.unpack(shape)
    repeat = [*range(count), *[count - 1] * (rows - count)]
    assert out.tokens.tolist() == numbers[0][repeat].tolist() and out.positions.tolist() == numbers[1][repeat].tolist()
    assert out.slots.tolist() == [*numbers[2].tolist(), *range(2048, 2048 + rows - count)]
    assert out.bases.tolist() == [12345] and out.sees.shape == (1, rows, span)
    assert out.apart is out.places is out.order is None
    assert torch.equal(out.sees[0, :, :seen], torch.from_numpy(visible[repeat])) and not out.sees[0, :, seen:].any()


def fork(length: int, seen: int) -> np.ndarray:
    """The root behind so many tokens, and two children that do not see each other."""
    visible = np.tril(np.ones((3, seen), dtype=bool), k=length)
    visible[2, length + 1] = False
    return visible


def test_copies_and_their_order_are_packed_too():
    segment = Segment(3, 1000, 320, fork(250, 320))
    look = view(segment)
    shape = RoundShape.of(4, [segment], [look])
    assert shape == (4, 1, 4, 512, 2)
    inbox = Inbox(shape.bytes, torch.device("cpu"))
    inbox._host[:] = 255  # an earlier round's
    inbox.send(shape, [1, 2, 3], [250, 251, 251], [1250, 1251, 1252], [segment], [look], 2048)
    out = inbox.unpack(shape)
    assert out.bases.tolist() == [1000] and out.copies.shape == (1, 2 * BLOCK)
    assert out.copies[0, :124].tolist() == [*range(1128, 1251), 1252]
    assert out.order.tolist() == [[[0, 1, 2, 3], [0, 1, 2, 3], [0, 4, 2, 3], [0, 4, 2, 3]]]
    assert out.sees.shape == (1, 4, 512 + 2 * BLOCK) and out.sees[0].sum(1).tolist() == [251, 252, 252, 252]
    assert out.sees[0, 2, :128].all() and out.sees[0, 2, 512 : 512 + 124].all()


def test_several_requests_have_places_of_their_own_and_the_last_one_fills_up():
    segments = [
        Segment(1, 0, 64, np.arange(64)[None] < 40),
        Segment(3, 1000, 320, fork(250, 320)),
        Segment(1, 2000, 128, np.arange(128)[None] < 70),
    ]
    looks = [view(segment) for segment in segments]
    shape = RoundShape.of(8, segments, looks)
    assert shape == (8, 4, 4, 512, 2)
    inbox = Inbox(shape.bytes, torch.device("cpu"))
    inbox._host[:] = 255  # an earlier round's
    slots = [39, 1250, 1251, 1252, 2069]
    inbox.send(shape, [5, 1, 2, 3, 6], [39, 250, 251, 251, 69], slots, segments, looks, 4096)
    out = inbox.unpack(shape)
    assert out.tokens.tolist() == [5, 1, 2, 3, 6, 6, 6, 6]
    assert out.slots.tolist() == [*slots, 4096, 4097, 4098]
    assert out.bases.tolist() == [0, 1000, 2000, 2000]
    assert out.apart.view(4, 4).tolist() == [[0, 0, 0, 0], [1, 2, 3, 3], [4, 4, 4, 4], [4, 4, 4, 4]]
    assert out.places.tolist() == [0, 4, 5, 6, 8, 8, 8, 8]
    assert out.sees[:, 0].sum(-1).tolist() == [40, 251, 70, 70]
    assert out.order[1, 2].tolist() == [0, 4, 2, 3] and out.order[0, 2].tolist() == [0, 1, 2, 3]
    assert out.copies[1, :124].tolist() == [*range(1128, 1251), 1252]
    assert set(out.copies[0].tolist()) == {0} and set(out.copies[2].tolist()) == {2000}
