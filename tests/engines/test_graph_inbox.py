"""What a recorded round reads: its size in buckets, and its numbers and masks packed into one copy."""

import numpy as np
import pytest
import torch

from actors.engines.backends.llama.graphs import Inbox, copies_bucket, rows_bucket, span_bucket
from actors.engines.branches import BLOCK, View, view
from actors.engines.engine import Segment


def test_buckets_of_rows_and_spans():
    assert [rows_bucket(n) for n in (1, 2, 3, 5, 8, 9, 33, 64)] == [1, 2, 4, 8, 8, 16, 64, 64]
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
    inbox = Inbox(64, 512, 0, torch.device("cpu"))
    inbox._host[:] = 255  # an earlier round's
    visible = chance.random((count, seen)) < 0.5
    numbers = chance.integers(0, 1 << 31, (3, count))
    inbox.send(rows, span, 0, *numbers.tolist(), Segment(count, 12345, seen, visible), View(visible), 2048)
    tokens, positions, slots, base, _, _, sees = inbox.unpack(rows, span, 0)
    repeat = [*range(count), *[count - 1] * (rows - count)]
    assert tokens.tolist() == numbers[0][repeat].tolist() and positions.tolist() == numbers[1][repeat].tolist()
    assert slots.tolist() == [*numbers[2].tolist(), *range(2048, 2048 + rows - count)]
    assert base.tolist() == [12345] and sees.shape == (rows, span)
    assert torch.equal(sees[:, :seen], torch.from_numpy(visible[repeat])) and not sees[:, seen:].any()


def test_copies_and_their_order_are_packed_too():
    inbox = Inbox(8, 512, 16, torch.device("cpu"))
    inbox._host[:] = 255  # an earlier round's
    visible = np.tril(np.ones((3, 320), dtype=bool), k=250)  # the root, and two children that do not see each other
    visible[2, 251] = False
    look = view(segment := Segment(3, 1000, 320, visible))
    copies = copies_bucket(4, look.copies.size // BLOCK)
    inbox.send(4, 512, copies, [1, 2, 3], [250, 251, 251], [1250, 1251, 1252], segment, look, 2048)
    *_, base, copied, order, sees = inbox.unpack(4, 512, copies)
    assert base.tolist() == [1000] and len(copied) == copies * BLOCK == 2 * BLOCK
    assert copied[:124].tolist() == [*range(1128, 1251), 1252]
    assert order.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 4, 2, 3], [0, 4, 2, 3]]
    assert sees.shape == (4, 512 + 2 * BLOCK) and sees.sum(1).tolist() == [251, 252, 252, 252]
    assert sees[2, :128].all() and sees[2, 512 : 512 + 124].all()
