"""What forwards take is learnt from forwards: how slow the machine is, and where streams share them what a row adds."""

import random

import pytest

from actors.cost import CostModel

CURVE = {1: 2000.0, 8: 4000.0, 16: 7000.0, 32: 13000.0}


def learnt(row_us: float, streams: tuple[int, ...], further: tuple[int, ...], slow: float = 1.0) -> CostModel:
    """Of forwards in which a stream takes more than a row of the curve, and a further row ``row_us``; of a machine that
    gets ``slow`` in the end."""
    cost, chance = CostModel(CURVE), random.Random(1)
    for number in range(300):
        own, more, noise = chance.choice(streams), chance.choice(further), chance.uniform(0.95, 1.05)
        time_us = (600.0 + 550.0 * own + row_us * more) * noise
        cost.observe(own + more, time_us * (slow if number >= 250 else 1.0), own, beside_prompt=own == 1)
    return cost


def test_a_row_takes_what_the_calibration_says_until_forwards_tell():
    cost = CostModel(CURVE)
    assert cost.row(8) == pytest.approx((cost(16) - cost(8)) / 8)


@pytest.mark.parametrize("row_us", [100.0, 600.0])
def test_what_a_row_adds_is_learnt_whatever_streams_take_besides(row_us):
    cost = learnt(row_us, (8, 9, 12), tuple(range(16)))
    assert cost.row(9) == pytest.approx(row_us, rel=0.3)


@pytest.mark.parametrize("row_us", [100.0, 600.0])
@pytest.mark.parametrize("streams", [1, 8])
def test_a_forward_without_further_rows_is_not_believed_to_be_slower_for_those_of_others(row_us, streams):
    plain, drafting = (learnt(row_us, (streams,), further) for further in ((0,), (4, 8, 12, 30)))
    assert drafting.row(streams) == pytest.approx(row_us, rel=0.3)
    assert drafting.slowdown(streams) == pytest.approx(plain.slowdown(streams), rel=0.15)


def test_a_machine_that_gets_slower_is_slower_for_streams_and_for_rows():
    before, after = learnt(200.0, (8,), (10, 40)), learnt(200.0, (8,), (10, 40), slow=2.0)
    assert after.row(8) == pytest.approx(2 * before.row(8), rel=0.3)
    assert after.round(8) == pytest.approx(2 * before.round(8), rel=0.3)


def test_one_forward_that_was_put_aside_changes_little():
    cost, chance = CostModel(CURVE), random.Random(1)
    for number in range(200):
        more = chance.randrange(16)
        cost.observe(8 + more, (5000.0 + 200.0 * more) * (100.0 if number == 150 else 1.0), 8)
    assert cost.row(8) == pytest.approx(200.0, rel=0.5)


def test_forwards_of_several_streams_do_not_change_the_cost_of_one():
    cost = CostModel(CURVE)
    for _ in range(50):
        cost.observe(1, 1500.0)
        cost.observe(8, 9000.0, 8)
    assert cost.round(1) == cost(1) == pytest.approx(1500.0, rel=0.1)
    assert cost.round(8) == pytest.approx(9000.0, rel=0.1)
    assert cost.round(32) == pytest.approx(13000.0 * 9 / 4, rel=0.1)  # as far as is known


def test_somebodys_long_prompt_does_not_make_rounds_look_longer():
    """A row of it takes twice one of drafts, for all that it looks back to."""
    cost = CostModel(CURVE)
    for _ in range(50):
        cost.observe(4 + 12, 3000.0 + 12 * 400.0, 4, beside_prompt=True)
    assert cost.round(4, 12) == pytest.approx(7800.0, rel=0.1)  # as long as nothing else was seen
    for number in range(50):
        cost.observe(4, 3000.0, 4)
        cost.observe(4 + 12, 3000.0 + 12 * (400.0 + 8 * number), 4, beside_prompt=True)
    assert cost.round(4) == pytest.approx(3000.0, rel=0.05)
