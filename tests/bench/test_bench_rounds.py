"""From single rounds to what an answer cost."""

import pytest

from duoactor.bench.results import AcceptedBy
from duoactor.bench.rounds import cost_of, singly
from duoactor.monitor.spans import shared
from protocols.messages import RequestStats, RoundStats


def told(number, drafted=(), **more):
    """Rounds of 10 ms, forwards of 8 ms that begin with them."""
    values = {"window": 3, "accepted": 2, "wait_us": 0.0} | more
    return RoundStats(
        "r", number, "sps", "d", values["window"], values["accepted"], values["accepted"] + 1, 4, 8000.0,
        values["wait_us"], 10_000.0, started_us=number * 10_000.0, draft_forwards=tuple(drafted),
    )  # fmt: skip


def test_work_of_both_sides_at_the_same_time_is_counted_once():
    assert shared([(0, 10), (20, 30)], [(5, 22), (25, 26), (40, 50)]) == pytest.approx(5 + 2 + 1)
    assert shared([], [(0, 1)]) == 0 and shared([(0, 1)], [(1, 2)]) == 0


def test_drafting_that_reached_the_verifier_later_counts_where_it_was():
    rounds = [told(0), told(1, [(1000, 2000)]), told(2, [(11_000, 3000), (17_000, 2500)]), told(3)]
    cost = cost_of(RequestStats(rounds=4), rounds)
    assert (cost.heard, cost.watched) == (4, 3)
    # from the end of one forward to that of the next: -2 to 8, 8 to 18, 18 to 28 ms; the last is not watched
    assert cost.at_work == 3
    assert cost.draft_ms == pytest.approx(7.5)
    assert cost.overlap_ms == pytest.approx(2 + 3 + 1)


def test_a_round_without_a_draft_forward_is_one_in_which_the_drafter_rested():
    rounds = [told(0), told(1, [(1000, 500)], window=0), told(2, window=0), told(3), told(4)]
    cost = cost_of(RequestStats(rounds=5), rounds)
    assert (cost.watched, cost.at_work, cost.verifying_drafts) == (4, 1, 3)
    assert cost.drafting == 2  # in round 3 it had drafted ahead


def test_a_drafter_that_is_asked_for_nothing_is_never_at_work():
    rounds = [told(number, window=0) for number in range(5)]
    cost = cost_of(RequestStats(rounds=5), rounds)
    assert (cost.watched, cost.at_work, cost.drafting) == (4, 0, 0)


def test_without_telemetry_there_are_the_verifiers_own_sums():
    cost = cost_of(RequestStats(rounds=4, draft_tokens=9, accepted_tokens=5), [])
    assert (cost.rounds, cost.drafted, cost.accepted, cost.heard) == (4, 9, 5, 0)


def test_whose_tokens_were_accepted_is_added_up_over_the_rounds_that_were_told():
    one = RoundStats("r", 1, "auto", "", 5, 4, 5, 6, 8000.0, 0.0, 10_000.0, from_draft=1, from_both=2, from_text=1)
    other = RoundStats("r", 2, "auto", "", 5, 3, 4, 6, 8000.0, 0.0, 10_000.0, from_memory=2, from_datastore=1)
    told = cost_of(RequestStats(rounds=3), [one, other]).sources
    assert told == AcceptedBy(draft=1, both=2, text=1, memory=2, datastore=1)
    assert cost_of(RequestStats(rounds=3), []).sources is None


def test_forwards_in_a_row_are_so_many_rounds_of_equal_length() -> None:
    several = RoundStats("r", 9, "vanilla", "", 0, 0, 3, 1, 600.0, 30.0, 930.0, started_us=1000.0)
    rounds = singly(several)
    assert [one.round for one in rounds] == [7, 8, 9]
    assert [one.started_us for one in rounds] == [1000.0, 1200.0, 1400.0]
    assert [one.wait_us for one in rounds] == [30.0, 0.0, 0.0]
    for field in ("committed", "forward_us", "wall_us", "rounds"):
        assert sum(getattr(one, field) for one in rounds) == getattr(several, field)


def test_a_single_forward_is_told_as_it_is() -> None:
    one = RoundStats("r", 9, "vanilla", "", 0, 0, 1, 1, 600.0, 0.0, 900.0)
    assert singly(one) == [one]
