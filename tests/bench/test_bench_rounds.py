"""From single rounds to what an answer cost."""

import pytest

from duoactor.bench.results import BenchRound
from duoactor.bench.rounds import cost_of, rounds_of, shared
from protocols.messages import Kind, RequestStats, RoundStats


def ten_ms(number, drafted=()):
    """A forward of 8 ms begins with each round."""
    return BenchRound(number * 10_000.0, 8000.0, 0.0, 0.0, 10_000.0, 3, tuple(drafted))


def test_work_of_both_sides_at_the_same_time_is_counted_once():
    assert shared([(0, 10), (20, 30)], [(5, 22), (25, 26), (40, 50)]) == pytest.approx(5 + 2 + 1)
    assert shared([], [(0, 1)]) == 0 and shared([(0, 1)], [(1, 2)]) == 0


def test_drafting_that_reached_the_verifier_later_counts_where_it_was():
    rounds = [ten_ms(0), ten_ms(1, [(1000, 2000)]), ten_ms(2, [(11_000, 3000), (17_000, 2500)]), ten_ms(3)]
    cost = cost_of(RequestStats(rounds=4), rounds)
    assert cost.draft_ms == pytest.approx(7.5)
    assert cost.overlap_ms == pytest.approx(2 + 3 + 1)


def test_without_telemetry_there_are_the_verifiers_own_sums():
    cost = cost_of(RequestStats(rounds=4, draft_tokens=9, accepted_tokens=5), [])
    assert (cost.rounds, cost.drafted, cost.accepted, cost.draft_ms) == (4, 9, 5, None)


def test_forwards_in_a_row_are_so_many_rounds_of_equal_length() -> None:
    several = RoundStats("r", 9, Kind("vanilla"), 0, 0, 3, 1, 600.0, 30.0, 930.0, started_us=1000.0)
    rounds = rounds_of(several)
    assert [one.started_us for one in rounds] == [1000.0, 1200.0, 1400.0]
    assert [one.wait_us for one in rounds] == [30.0, 0.0, 0.0]
    for field in ("committed", "forward_us", "wall_us"):
        assert sum(getattr(one, field) for one in rounds) == getattr(several, field)
