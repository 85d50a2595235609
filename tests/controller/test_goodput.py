import random

import pytest

from actors.controller.goodput import Belief, best_setting, goodput, hardware_gamma, initial_gamma
from actors.verifier.cost import CostModel
from actors.verifier.waiting import DrafterPace, patience

FLAT = CostModel({1: 10_000.0, 64: 10_000.0})
STEEP = CostModel({1: 10_000.0, 64: 10_000.0 * 64})


def test_the_hardware_budget_is_the_draft_length_that_takes_as_long_as_its_verification():
    assert hardware_gamma(FLAT, 1000.0) == 10
    assert hardware_gamma(FLAT, 10_000.0) == 1


def test_where_verification_is_flat_the_first_gamma_is_the_papers():
    assert initial_gamma(FLAT, 1000.0, "duodecoding") == hardware_gamma(FLAT, 1000.0)


def test_where_every_row_costs_the_first_gamma_is_shorter():
    assert initial_gamma(STEEP, 500.0, "duodecoding") < hardware_gamma(STEEP, 500.0)


def test_no_draft_length_promises_more_than_none_where_drafts_cannot_pay():
    hopeless = Belief(acceptance=(0.02,), heads=(0.02,), step_us=5000.0)
    for method in ("sps", "pearl", "duodecoding"):
        assert best_setting(method, hopeless, STEEP)[1] <= goodput(method, 0, 1, hopeless, STEEP)


def test_sps_goodput_agrees_with_simulation():
    chance = random.Random(0)
    a, gamma, step = 0.8, 5, 300.0
    tokens = time = 0.0
    for _ in range(40_000):
        n = 0
        while n < gamma and chance.random() < a:
            n += 1
        tokens += n + 1
        time += gamma * step + FLAT(1 + gamma)
    belief = Belief((a,), (a,), step, overhead_us=0.0)
    assert goodput("sps", gamma, 1, belief, FLAT) == pytest.approx(tokens / time, rel=0.02)


def test_parallel_goodput_agrees_with_simulation_of_the_two_state_loop():
    chance = random.Random(0)
    a, gamma, step = 0.8, 8, 1000.0
    tokens = time = 0.0
    chain = False
    for _ in range(60_000):
        if not chain:
            tokens, time = tokens + 1, time + max(FLAT(1), gamma * step)
            chain = chance.random() < a
        else:
            length, n = gamma - 1, 0
            while n < length and chance.random() < a:
                n += 1
            tokens, time = tokens + n + 1, time + max(FLAT(1 + length), gamma * step)
            chain = n == length and chance.random() < a
    belief = Belief((a,), (a,), step, overhead_us=0.0)
    assert goodput("pearl", gamma, 1, belief, FLAT) == pytest.approx(tokens / time, rel=0.02)


def test_a_cost_model_is_never_believed_to_fall_with_rows():
    cost = CostModel({1: 5.0, 2: 9.0, 4: 7.0, 8: 8.0})
    times = [cost(rows) for rows in range(1, 20)]
    assert times == sorted(times)


def test_row_counts_that_were_measured_the_wrong_way_round_share_their_mean():
    cost = CostModel({1: 11.0, 2: 9.0, 4: 10.0, 8: 16.0})
    assert [cost(rows) for rows in (1, 2, 4, 8)] == [10.0, 10.0, 10.0, 16.0]


def test_a_cost_model_follows_contention_but_not_a_single_stall():
    cost = CostModel({1: 1000.0, 8: 2000.0})
    cost.observe(1, 1e6)
    assert cost(1) < 1300
    for _ in range(60):
        cost.observe(8, 4000.0)
    assert cost(1) == pytest.approx(2000.0, rel=0.05)


def test_waiting_pays_when_drafts_are_cheap_and_right_and_not_otherwise():
    alone = 1 / FLAT(1)
    assert patience(DrafterPace(300.0), FLAT, 0.8, alone) >= 3
    assert patience(DrafterPace(300.0), FLAT, 0.01, alone) == 0
    assert patience(DrafterPace(30_000.0), FLAT, 0.5, alone) == 0
    assert patience(DrafterPace(300.0), FLAT, 0.8, 5 / FLAT(1)) == 0
