"""What a target's rounds cost by their rows, measured on a model whose time is known."""

import itertools
from dataclasses import dataclass, field

import pytest

from actors.cost import CostModel
from actors.models import ModelInfo, Outcome
from actors.verifier.timing import COARSE, FINE, measure_branch, measure_target


def tiles(rows: int) -> float:
    """Milliseconds of a kernel that works in tiles of six rows."""
    return 10.0 * -(-rows // 6)


@dataclass
class Tiled:
    scale: float = 1.0
    now: float = 0.0
    rounds: list[int] = field(default_factory=list)
    max_window: int = 63
    branches: bool = True
    branch_ms: float = 0.0
    info: ModelInfo = field(default_factory=lambda: ModelInfo("tiled", 100, 4096, frozenset(), ""))

    def open(self, prompt, sampling, generated=(), most_nodes=0):
        return 1

    def prefill(self, handle, limit=None):
        return Outcome([], [1])

    def verify(self, windows):
        rows = 1 + len(windows[0].tokens)
        warm = 1.0 if self.rounds else 5.0  # the first forward of a process is slow
        self.rounds.append(rows)
        beside = sum(after <= before for before, after in itertools.pairwise(windows[0].parents))
        self.now += self.scale * (warm * tiles(rows) + self.branch_ms * beside) / 1000
        return [Outcome([], [1])]

    def close(self, handle):
        pass

    def measured(self) -> dict[int, float]:
        return measure_target(self, timer=lambda: self.now)


def test_the_step_of_a_tiled_kernel_is_seen_where_it_is():
    cost = CostModel(Tiled().measured())
    assert [round(cost(rows) / 1000) for rows in (1, 4, 6, 7, 12, 18)] == [10, 10, 10, 20, 20, 30]


def test_a_slow_target_is_measured_at_few_row_counts_and_once():
    model = Tiled(scale=100.0)
    assert set(model.measured()) == set(COARSE)
    assert sorted(model.rounds) == sorted(COARSE)


def test_a_fast_target_is_measured_at_all_of_them():
    assert set(Tiled().measured()) == {*COARSE, *FINE}


def test_what_others_take_from_the_processors_at_the_start_does_not_last():
    """A drafter that loads its model meanwhile lengthens every second round threefold."""

    class Disturbed(Tiled):
        def verify(self, windows):
            before = self.now
            outcomes = super().verify(windows)
            if len(self.rounds) // 17 % 2:
                self.now += 2 * (self.now - before)
            return outcomes

    cost, quiet = CostModel(Disturbed().measured()), CostModel(Tiled().measured())
    assert [cost(rows) for rows in range(1, 32)] == pytest.approx([quiet(rows) for rows in range(1, 32)])


def test_a_branch_is_priced_by_what_it_adds_to_a_round():
    for model, price in ((Tiled(), 0.0), (Tiled(branch_ms=14.0), 14.0 / 7 / 10.0), (Tiled(branches=False), 0.0)):
        assert measure_branch(model, timer=lambda model=model: model.now) == pytest.approx(price)
