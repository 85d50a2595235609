import random

import pytest

from actors.controller.command import command
from actors.controller.goodput import (
    GAMMAS,
    Belief,
    Setting,
    alternatives,
    chain_window,
    dimensions,
    goodput,
    hardware_gamma,
    initial_setting,
)
from actors.cost import CostModel
from actors.verifier.waits import DrafterPace, patience

FLAT = CostModel({1: 10_000.0, 64: 10_000.0})
STEEP = CostModel({1: 10_000.0, 64: 10_000.0 * 64})
METHODS = ["sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree", "auto"]


def belief(cost=FLAT, step_us=500.0, chance=0.7, **more) -> Belief:
    return Belief(cost, CostModel({1: step_us}), (chance, (1 - chance) / 3), (chance,), **more)


def test_the_hardware_budget_is_the_draft_length_that_takes_as_long_as_its_verification():
    assert hardware_gamma(belief(step_us=1000.0)) == 10
    assert hardware_gamma(belief(step_us=10_000.0)) == 1


def test_the_hardware_budget_counts_the_batched_step_of_all_sequences():
    wide = Belief(FLAT, CostModel({1: 1000.0, 2: 1500.0}))
    assert hardware_gamma(wide, 2) == 14  # seven steps of two leaves


@pytest.mark.parametrize("method", ["duodecoding", "duodecoding-lockstep", "pearl"])
def test_where_verification_is_flat_the_first_gamma_is_the_papers(method):
    first = initial_setting(method, belief(step_us=1000.0)).gamma
    assert first == pytest.approx(hardware_gamma(belief(step_us=1000.0)), abs=2)


def test_where_every_row_costs_the_first_gamma_is_shorter():
    assert initial_setting("duodecoding", belief(STEEP)).gamma < hardware_gamma(belief(STEEP))


@pytest.mark.parametrize("method", METHODS)
def test_no_setting_promises_more_than_no_drafts_where_drafts_cannot_pay(method):
    hopeless = Belief(STEEP, CostModel({1: 5000.0}), (0.02, 0.01), (0.02,))
    for dimension in dimensions(method):
        for setting in alternatives(method, Setting(2), dimension):
            assert goodput(method, setting, hopeless) <= 1.01 * goodput(method, None, hopeless)


@pytest.mark.parametrize("method", METHODS)
def test_a_better_draft_promises_more(method):
    rates = [goodput(method, Setting(4, 1, 2), belief(chance=chance)) for chance in (0.2, 0.4, 0.6, 0.8)]
    assert rates == sorted(rates)


def test_a_slower_drafter_shortens_the_chain_that_pays():
    best = [
        max(GAMMAS, key=lambda gamma: goodput("sps", Setting(gamma), belief(step_us=step_us)))
        for step_us in (200.0, 1000.0, 4000.0)
    ]
    assert best == sorted(best, reverse=True)
    assert best[0] > best[-1]


def test_streams_that_share_a_forward_shorten_the_chain_that_pays():
    cost, step = CostModel({1: 10_000.0, 64: 16_400.0}), CostModel({1: 500.0, 8: 1000.0})
    best = [
        max(GAMMAS, key=lambda gamma: goodput("pearl", Setting(gamma), Belief(cost, step, streams=streams)))
        for streams in (1, 8)
    ]
    assert best[1] < best[0]


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
    known = belief(step_us=step, chance=a, overhead_us=0.0)
    assert goodput("sps", Setting(gamma), known) == pytest.approx(tokens / time, rel=0.02)


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
    known = belief(step_us=step, chance=a, overhead_us=0.0)
    assert goodput("pearl", Setting(gamma), known) == pytest.approx(tokens / time, rel=0.02)


def test_a_tree_that_is_a_chain_promises_what_a_parallel_chain_does():
    chain = Belief(FLAT, CostModel({1: 1000.0}), (0.8,), (0.8,), overhead_us=0.0)
    assert goodput("tree", Setting(16), chain) == pytest.approx(goodput("pearl", Setting(9), chain), rel=0.15)


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
    assert patience(DrafterPace(CostModel({1: 300.0})), FLAT, 0.8, alone) >= 3
    assert patience(DrafterPace(CostModel({1: 300.0})), FLAT, 0.01, alone) == 0
    assert patience(DrafterPace(CostModel({1: 30_000.0})), FLAT, 0.5, alone) == 0
    assert patience(DrafterPace(CostModel({1: 300.0})), FLAT, 0.8, 5 / FLAT(1)) == 0


def test_a_chain_is_verified_as_far_as_its_rows_pay():
    assert chain_window(belief(FLAT)) == 32
    assert chain_window(belief(STEEP)) == 1
    steps = CostModel({1: 10_000.0, 6: 11_000.0, 7: 15_000.0, 33: 60_000.0})  # kernels work in tiles of six rows
    assert chain_window(belief(steps)) == 5


@pytest.mark.parametrize("method", ["pearl", "duodecoding"])
def test_a_long_phase_is_not_verified_at_once_where_rows_cost(method):
    steps = belief(CostModel({1: 10_000.0, 6: 11_000.0, 7: 15_000.0, 33: 60_000.0}))
    budget = command(method, Setting(16, 8), steps)
    assert (budget.gamma, budget.window) == (16, 5)
