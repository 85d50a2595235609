"""The controller earns its keep: the real actors on a virtual clock, in a world that changes under them.

The best fixed setting is found by brute force in the same simulator, which knows none of the controller's formulas.
"""

import itertools
from dataclasses import replace

import pytest
from simulation import Fixed, Simulation, World, compare

WORLD = World()
SLOWER_DRAFTER = replace(WORLD, step_us=5 * WORLD.step_us)
WORSE_DRAFTS = replace(WORLD, skill=0.45)
FASTER_TARGET = replace(WORLD, verify_us=WORLD.verify_us / 10, row_us=WORLD.row_us / 10)
FAR_AWAY = replace(WORLD, message_us=2500.0)
USELESS = replace(WORLD, skill=0.0, boast=0.5)
CHANGES = [
    pytest.param(SLOWER_DRAFTER, 1, id="the drafter slows down 5 times"),
    pytest.param(WORSE_DRAFTS, 1, id="acceptance falls"),
    pytest.param(FASTER_TARGET, 1, id="the verifier gets 10 times faster"),
    pytest.param(FAR_AWAY, 1, id="network delay appears"),
    pytest.param(WORLD, 4, id="the batch grows"),
]
METHODS = ["sps", "pearl", "duodecoding", "tree", "auto"]


def settings(method: str) -> list[Fixed]:
    if method in ("tree", "auto"):
        whole = [Fixed(method, 1, 0, window, wait) for window, wait in ((0, 0), (0, 1), (4, 0), (8, 0), (8, 1))]
        return [*whole, Fixed(method, 0)]
    return [Fixed(method, gamma) for gamma in (0, 1, 2, 3, 4, 6, 8, 12)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("after", "streams"), CHANGES)
def test_50_rounds_after_a_change_the_rate_is_that_of_the_best_fixed_setting(method, after, streams):
    found = compare(method, WORLD, after, streams, settings(method))
    assert found.ratio > 0.95, (found.best, found.fixed, found.controlled)


@pytest.mark.parametrize("method", METHODS)
def test_a_useless_drafter_rests_and_costs_nothing(method):
    sim = Simulation(USELESS, method)
    ((_, end),) = sim.play((USELESS, 600, 1))
    alone = Simulation(USELESS, "vanilla")
    alone.play((USELESS, 600, 1))
    rounds = [stats for _, stats in sim.trace.rounds[60:]]
    assert sim.rate(60, end) > 0.97 * alone.rate(60, end)
    assert 0.8 < sum(stats.resting for stats in rounds) / len(rounds) < 1.0  # it is tried again now and then
    assert sum(stats.draft_steps for stats in rounds) < 0.5 * len(rounds)


@pytest.mark.parametrize("method", METHODS)
def test_a_drafter_that_becomes_useful_is_used_again(method):
    sim = Simulation(USELESS, method)
    _, (begin, _) = sim.play((USELESS, 200, 1), (WORLD, 1500, 1))
    assert any(stats.resting for _, stats in sim.trace.rounds[:begin])
    assert not any(stats.resting for _, stats in sim.trace.rounds[-100:])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world", [WORLD, WORSE_DRAFTS, USELESS], ids=["good", "worse", "useless"])
def test_in_steady_state_the_prediction_is_within_15_percent_of_what_is_measured(method, world):
    sim = Simulation(world, method)
    _, (begin, end) = sim.play((world, 200, 1), (world, 500, 1))
    budgets = [budget for _, rounds, budget in sim.trace.budgets if begin < rounds < end]
    predicted = sum(budget.predicted_tokens_per_second for budget in budgets) / len(budgets)
    assert predicted == pytest.approx(sim.rate(begin, end), rel=0.15)


@pytest.mark.parametrize("method", METHODS)
def test_settings_do_not_thrash_while_nothing_changes(method):
    sim = Simulation(WORLD, method)
    _, (begin, end) = sim.play((WORLD, 200, 1), (WORLD, 800, 1))
    seen = [(b.gamma > 0, 0 if method in ("tree", "auto") else b.gamma, b.sequences, b.window, b.wait_us)
            for _, rounds, b in sim.trace.budgets if begin < rounds < end]  # fmt: skip
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert changes <= 6
