"""The compiled layers' attention against softmax written out, and every row's bits whatever is beside it."""

import numpy as np
import pytest

from actors.engines.decoder.cpu.pool_attention import shared_slots
from actors.engines.decoder.cpu.records import LANES
from tests.world.pairs import every_pair

SLOTS, LENGTHS = 400, 144


class Attention:
    """Requests of a round with random queries, keys and values. ``slots``: of every request, what its rows see."""

    def __init__(self, slots: list[list[list[int]]], heads: int, group: int, width: int, half: bool) -> None:
        chance = np.random.default_rng(heads + width)
        self.heads, self.group, self.width, self.half, self.slots = heads, group, width, half, slots
        rows = sum(map(len, slots))
        numbers = chance.standard_normal((2, heads, SLOTS, width), dtype=np.float32)
        words = numbers.view(np.uint32) & np.uint32(0xFFFF0000 if half else 0xFFFFFFFF)
        self.keys, self.values = words.view(np.float32)
        self.queries = chance.standard_normal((rows, (heads * (group + 2)) * width), dtype=np.float32)

    def computed(self, helpers: int = 0, only: slice = slice(None)) -> np.ndarray:
        """Outputs of the requests ``only``."""
        from actors.engines.decoder.cpu.team import JOB, Team  # compiles

        lists = [row for request in self.slots[only] for row in request]
        before = sum(len(request) for request in self.slots[: only.start or 0])
        queries, room = self.queries[before:][: len(lists)], LENGTHS
        ends = np.cumsum([len(request) for request in self.slots[only]])
        counts = np.array([len(row) for row in lists])
        sees = np.array([[*row, *[row[-1]] * (room - len(row))] for row in lists])
        shares, out = np.empty_like(counts), np.empty((len(lists), self.heads * self.group * self.width), np.float32)
        for first, end in zip([0, *ends], ends, strict=False):
            shared_slots.py_func(sees.reshape(-1), room, counts, first, end, shares)
        team, job = Team(helpers), np.zeros(1, JOB)
        own_scores = len(lists) * self.group * (room + 2 * self.width) + LANES * self.width
        scores = np.empty((team.size, own_scores), np.float32)
        arrays = {
            "keys": self._stored(self.keys),
            "values": self._stored(self.values),
            "scores": scores,
            "skips": np.zeros(len(lists), np.int64),
        }
        job["scale"] = self.width**-0.5
        for name, array in {**arrays, "sees": sees, "counts": counts, "shares": shares, "ends": ends}.items():
            job[name] = array.ctypes.data
        numbers = {"heads": self.heads, "slots": SLOTS, "width": self.width, "room": room, "requests": len(ends)}
        for name, number in {**numbers, "rows": len(lists), "half": self.half, "own_scores": own_scores}.items():
            job[name] = number
        team.run(job, np.ascontiguousarray(queries), out)
        return out

    def _stored(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.view(np.int16)[..., 1::2].copy() if self.half else numbers

    def expected(self) -> np.ndarray:
        lists = [row for request in self.slots for row in request]
        queries = self.queries[:, : self.heads * self.group * self.width].astype(np.float64)
        out = []
        for row, slots in enumerate(lists):
            query = queries[row].reshape(self.heads, self.group, self.width)
            scores = np.einsum("hgd,hkd->hgk", query, self.keys[:, slots]) / self.width**0.5
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            out.append(np.einsum("hgk,hkd->hgd", weights, self.values[:, slots]).reshape(-1))
        return np.array(out)


def text(first: int, length: int) -> list[int]:
    return list(range(first, first + length))


def chain(first: int, length: int, rows: int) -> list[list[int]]:
    """A request with a window of which every row sees the one before, or a piece of a prompt."""
    return [text(first, length + row) for row in range(rows)]


def tree(first: int, length: int) -> list[list[int]]:
    """A root, three branches and what follows in two of them, whose slots are anywhere."""
    root = text(first, length)
    branches = [[*root, 390], [*root, 371, 372], [*root, 380]]
    return [root, *branches, [*branches[0], 391], [*branches[1], 373, 374, 375]]


ROUNDS = {
    "a row": [chain(3, 70, 1)],
    "a first token": [chain(3, 1, 1)],
    "a chain across two blocks": [chain(0, 60, 12)],
    "a prompt from its beginning": [chain(5, 1, 40)],
    "a tree": [tree(0, 129)],
    "requests side by side": [chain(200, 5, 1), tree(7, 50), chain(100, 64, 9), chain(300, 33, 2)],
}
SHAPES = [(3, 1, 64), (2, 3, 16), (1, 2, 48), (2, 4, 80), (1, 1, 128)]  # heads of keys, queries of each, width


@pytest.mark.parametrize(("round_", "shape", "half"), every_pair([*ROUNDS], SHAPES, [True, False]), ids=str)
def test_attention_is_softmax_over_the_slots_that_a_row_sees_with_the_bits_that_it_has_alone(round_, shape, half):
    slots = ROUNDS[round_]
    attention = Attention(slots, *shape, half)
    together = attention.computed()
    off = 0.02 if half else 1e-5  # queries and weights have eight bits
    np.testing.assert_allclose(together, attention.expected(), atol=off)
    attention = Attention([[row] for request in slots for row in request], *shape, half)
    for row in range(len(together)):
        assert (attention.computed(only=slice(row, row + 1))[0] == together[row]).all(), row


@pytest.mark.parametrize("half", [True, False], ids=["bfloat16", "float32"])
def test_a_team_attends_with_the_bits_of_one_thread(half):
    attention = Attention(ROUNDS["requests side by side"], 3, 2, 32, half)
    alone = attention.computed()
    for _ in range(50):
        assert (attention.computed(helpers=2) == alone).all()


def test_rows_of_a_request_share_slots_up_to_the_first_that_differs():
    slots = np.array([[4, 5, 6, 6], [4, 5, 9, 9], [4, 5, 9, 7], [1, 5, 9, 7]])
    counts, shares = np.array([3, 3, 4, 4]), np.zeros(4, np.int64)
    shared_slots.py_func(slots.reshape(-1), 4, counts, 0, 4, shares)
    assert shares.tolist() == [2, 3, 0, 4]
