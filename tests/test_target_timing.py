"""What a target's rounds cost by their rows, measured on a model whose time is known."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from actors.cost import CostModel
from actors.models import ModelInfo, Outcome
from actors.target_timing import FINE, NEEDED, Timing, measure


def tiles(rows: int) -> float:
    """Milliseconds of a kernel that works in tiles of six rows."""
    return 10.0 * -(-rows // 6)


@dataclass
class Tiled:
    scale: float = 1.0
    now: float = 0.0
    rounds: list[int] = field(default_factory=list)
    max_window: int = 63
    has_spare_cpus: bool = False
    info: ModelInfo = field(default_factory=lambda: ModelInfo("tiled", 100, 4096, frozenset(), ""))

    def open(self, prompt, sampling, generated=(), most_nodes=0):
        return 1

    def prefill(self, handle, limit=None):
        return Outcome([], [1])

    def verify(self, windows):
        rows = 1 + len(windows[0].tokens)
        warm = 1.0 if self.rounds else 5.0  # the first forward of a process is slow
        self.rounds.append(rows)
        self.now += self.scale * warm * tiles(rows) / 1000
        return [Outcome([], [1])]

    def close(self, handle):
        pass

    def measured(self) -> dict[int, float]:
        return self.timing().alone_us

    def timing(self) -> Timing:
        return measure(self, timer=lambda: self.now)


def test_the_step_of_a_tiled_kernel_is_seen_where_it_is():
    cost = CostModel(Tiled().measured())
    assert [round(cost(rows) / 1000) for rows in (1, 4, 6, 7, 12, 18)] == [10, 10, 10, 20, 20, 30]


@pytest.mark.parametrize("context", [8, 16, 64, 96, 128, 192, 256])
def test_a_target_with_a_short_context_is_measured_at_the_rows_that_fit_it(context):
    model = Tiled(info=ModelInfo("tiled", 100, context, frozenset(), ""))
    measured = model.measured()
    assert set(measured) <= {shape.rows for shape in (*NEEDED, *FINE)} and {1, context // 8} & set(measured)
    text = min(64, context // 2)
    assert text + len(model.rounds) + max(model.rounds) <= context  # each round brings a token here


def test_a_slow_target_is_measured_at_few_row_counts_and_once():
    model = Tiled(scale=100.0)
    needed = [shape.rows for shape in NEEDED]
    assert set(model.measured()) == set(needed)
    assert sorted(model.rounds) == sorted(needed)


def test_a_fast_target_is_measured_at_all_of_them():
    assert set(Tiled().measured()) == {shape.rows for shape in (*NEEDED, *FINE)}


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


@pytest.mark.parametrize(("device", "timer"), [("cpu", "thread_time"), ("cuda", "perf_counter")])
def test_a_target_on_the_processor_is_measured_by_cpu_time_which_others_do_not_lengthen(monkeypatch, device, timer):
    model = Tiled(info=ModelInfo("tiled", 100, 4096, frozenset(), "", device=device))
    monkeypatch.setattr("actors.target_timing.time", SimpleNamespace(**{timer: lambda: model.now}))
    assert measure(model).alone_us == Tiled().measured()


class Lending(Tiled):
    """Reading the weights takes as long with the drafters' CPUs, computing with them half of the time."""

    used = False

    def __init__(self, scale: float) -> None:
        super().__init__(scale, has_spare_cpus=True)

    def use_spare_cpus(self, used: bool) -> None:
        self.used = used

    def verify(self, windows):
        rows = 1 + len(windows[0].tokens)
        self.rounds.append(rows)
        self.now += self.scale * max(10.0, rows * (2.5 if self.used else 5.0)) / 1000
        return [Outcome([], [1])]


def test_what_drafters_cpus_bring_is_known_by_rows():
    model = Lending(scale=0.1)
    found = model.timing()
    cost = CostModel(found.alone_us, lent=found.lent_us)
    assert cost.lends and cost.lent(1) / cost.own(1) > 0.9, "with the noise of the first, it shares the mean of some"
    assert [cost.lent(rows) / cost.own(rows) for rows in (8, 16, 32)] == pytest.approx([0.5] * 3)
    assert not model.used, "they are the drafters' again"


@pytest.mark.parametrize("context", range(2, 12))
def test_a_context_of_a_few_tokens_is_measured_as_far_as_it_goes(context):
    """Its target may use the drafters' CPUs, though no round with them was measured."""
    model = Lending(scale=0.1)
    model.info = ModelInfo("tiled", 100, context, frozenset(), "")
    found = model.timing()
    assert 1 in found.alone_us and (found.lent_us is None or set(found.lent_us) == set(found.alone_us))
    assert not model.used


def test_of_a_slow_target_one_row_is_measured_with_them_once():
    model = Lending(scale=500.0)
    found = model.timing()
    assert model.rounds[len(NEEDED) :] == [1, 1, 1], "without them, a round that wakes their threads, and with them"
    assert found.lent_us is None, "one row reads the weights, which takes as long"


def test_without_cpus_to_lend_nothing_is_measured():
    assert Tiled().timing().lent_us is None
