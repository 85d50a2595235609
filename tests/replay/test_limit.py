import pytest

from actors.replay.limit import drafted_limit, perfect_limit

FLAT = lambda rows: 10.0  # noqa: E731


def dear(rows):
    return 10.0 * rows


def test_perfect_drafts_bring_a_window_in_each_round():
    assert perfect_limit(1 + 8 * 5, FLAT, 1.0, longest=7) == pytest.approx(5 * 11)


def test_a_token_that_no_candidate_names_ends_a_round():
    right, missed = 2, 0
    assert drafted_limit([missed, right, right, missed, right, missed], FLAT, 1.0, 31) == pytest.approx(2 * 11)
    assert drafted_limit([1] + [missed] * 6, FLAT, 1.0, 31) == pytest.approx(6 * 11)


def test_a_candidate_beyond_those_that_join_the_tree_is_none():
    assert drafted_limit([1, 5, 5, 5], FLAT, 0.0, 31) == drafted_limit([1, 0, 0, 0], FLAT, 0.0, 31)


def test_where_a_row_costs_as_much_as_a_forward_nothing_is_won_but_the_overhead():
    assert perfect_limit(9, dear, 0.0, 31) == pytest.approx(80.0)
    assert perfect_limit(9, dear, 5.0, 31) == pytest.approx(85.0)


def test_one_token_takes_no_round():
    assert perfect_limit(1, FLAT, 1.0, 31) == 0.0
