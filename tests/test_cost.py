"""What forwards take: the calibrated curve, and how slow the machine is now."""

import pytest

from actors.cost import CostModel

CURVE = {1: 2000.0, 8: 4000.0, 16: 7000.0, 32: 13000.0}


def test_noise_in_the_calibration_cannot_make_rows_look_free():
    cost = CostModel({1: 1000.0, 2: 900.0, 4: 1100.0})
    assert [cost(rows) for rows in (1, 2, 4)] == [950.0, 950.0, 1100.0]


def test_a_machine_that_gets_slower_is_slower_for_every_number_of_rows():
    cost = CostModel(CURVE)
    for _ in range(60):
        cost.observe(8, 8000.0)
    assert cost(1) == pytest.approx(4000.0, rel=0.02) and cost(16) == pytest.approx(14_000.0, rel=0.02)


def test_one_forward_that_was_put_aside_changes_little():
    cost = CostModel(CURVE)
    cost.observe(1, 1e9)
    assert cost(1) <= 1.2 * 2000.0


def test_while_drafters_rest_their_cpus_count():
    cost = CostModel(CURVE, lent={1: 1400.0, 8: 2200.0})
    assert cost.lends and cost(1) == 2000.0
    cost.uses_lent = True
    assert cost(1) == 1400.0
