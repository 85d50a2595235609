"""The controller earns its keep: the real actors on a virtual clock, in a world that changes under them.

The best fixed setting is found by brute force in the same simulator, which knows none of the controller's formulas.
Constants were chosen on ``TUNING`` seeds; every test runs on seeds that were held out. The tool
``tests/controller/adaptation.py`` goes through all of them with every method, change and kind of compute.
"""

import itertools

import pytest

from tests.controller.scenarios import METHODS, SCENARIOS, WORLD, tried
from tests.world.simulation import Fixed, Simulation

TUNING = range(3)
HELD_OUT = range(100, 110)  # and three more where four are taken together
CASES = list(itertools.product(METHODS, SCENARIOS))
USELESS = SCENARIOS["the drafts are random"].after
NAMED = METHODS[:-1]


@pytest.mark.parametrize(
    ("method", "change", "seed", "inline"),
    [(*case, HELD_OUT[number % len(HELD_OUT)], number % 3 == 1) for number, case in enumerate(CASES)],
)
def test_50_rounds_after_a_change_the_rate_is_that_of_the_best_fixed_setting(method, change, seed, inline):
    # Of eight streams each has its own stretch of text and its own moment of settling, and 100 tokens of each are all
    # that there is time for: the best of three settings is the luckiest of three, and the very same gamma, held fixed
    # and commanded, differs by 8%. So four seeds are taken together there, and the bound is 0.9.
    many = SCENARIOS[change].streams > 4
    found = [tried(method, SCENARIOS[change], one, inline) for one in range(seed, seed + (4 if many else 1))]
    ratio = sum(one.ratio for one in found) / len(found)
    assert ratio > (0.9 if many else 0.95), [(one.best, one.fixed, one.controlled) for one in found]


@pytest.mark.parametrize("inline", [False, True], ids=["thread", "inline"])
def test_a_useless_drafter_rests_and_costs_nothing(inline):
    sim = Simulation(USELESS, "auto", seed=HELD_OUT[0], inline=inline)
    ((_, end),) = sim.play((USELESS, 600, 1))
    alone = Simulation(USELESS, "vanilla", seed=HELD_OUT[0], inline=inline)
    alone.play((USELESS, 600, 1))
    rounds = [stats for _, stats in sim.trace.rounds[60:]]
    assert sim.rate(60, end) > 0.97 * alone.rate(60, end)
    without = sum(stats.resting or not stats.drafter for stats in rounds)
    assert 0.8 < without / len(rounds) < 1.0  # it is tried again now and then


@pytest.mark.parametrize("method", NAMED)
def test_a_method_that_a_user_names_never_rests(method):
    sim = Simulation(USELESS, method, seed=HELD_OUT[1])
    ((_, end),) = sim.play((USELESS, 300, 1))
    assert not any(stats.resting for _, stats in sim.trace.rounds)
    assert all(stats.gamma >= 1 for _, stats in sim.trace.rounds)
    assert sum(bool(stats.draft_forwards) for _, stats in sim.trace.rounds) > 0.9 * end


def test_a_drafter_that_becomes_useful_is_used_again():
    sim = Simulation(USELESS, "auto", seed=HELD_OUT[2])
    _, (begin, _) = sim.play((USELESS, 200, 1), (WORLD, 1500, 1))
    assert any(stats.resting or not stats.drafter for _, stats in sim.trace.rounds[:begin])
    assert all(stats.drafter and not stats.resting for _, stats in sim.trace.rounds[-100:])


def test_bad_text_is_not_held_against_the_good_text_behind_it():
    sim = Simulation(WORLD, "duodecoding", seed=HELD_OUT[3])
    spans = sim.play((WORLD, 200, 1), (USELESS, 300, 1), (WORLD, 1000, 1))
    begin, end = spans[-1]
    fresh = Simulation(WORLD, "duodecoding", Fixed("duodecoding", 12), seed=HELD_OUT[3])
    fresh.at = sim.at + sim.tokens(begin)
    ((_, last),) = fresh.play((WORLD, 1000, 1))
    assert sim.rate(begin, end) > 0.9 * fresh.rate(0, last)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("change", ["acceptance falls", "the drafts are random"])
def test_in_steady_state_the_prediction_is_within_15_percent_of_what_is_measured(method, change):
    world = SCENARIOS[change].after
    sim = Simulation(world, method, seed=HELD_OUT[4])
    _, (begin, end) = sim.play((world, 200, 1), (world, 500, 1))
    budgets = [budget for _, rounds, budget in sim.trace.budgets if begin < rounds < end]
    predicted = sum(budget.predicted_tokens_per_second for budget in budgets) / len(budgets)
    assert predicted == pytest.approx(sim.rate(begin, end), rel=0.15)


@pytest.mark.parametrize("method", METHODS)
def test_settings_do_not_thrash_while_nothing_changes(method):
    sim = Simulation(WORLD, method, seed=HELD_OUT[5])
    _, (begin, end) = sim.play((WORLD, 200, 1), (WORLD, 800, 1))
    seen = [(b.gamma, b.sequences) for _, rounds, b in sim.trace.budgets if begin < rounds < end]
    assert sum(one != other for one, other in itertools.pairwise(seen)) <= 12


@pytest.mark.parametrize("method", METHODS)
def test_without_its_controller_a_stream_falls_to_what_the_start_up_calibration_gives(method):
    seed = HELD_OUT[6]
    sim = Simulation(WORLD, method, seed=seed)
    spans = sim.play((WORLD, 200, 1), (WORLD, 1800, 1, False), (WORLD, 300, 1))
    sixth = (spans[1][1] - spans[1][0]) // 6
    begin, end = spans[1][1] - sixth, spans[1][1]  # the controller's last word has run out
    assert sim.trace.rounds[begin][0] - sim.trace.rounds[spans[1][0]][0] > 5.0
    alone = Simulation(WORLD, method, _Silent(), seed=seed)
    alone.at = sim.at + sim.tokens(begin)
    ((_, last),) = alone.play((WORLD, sim.tokens(end) - sim.tokens(begin), 1))
    assert sim.rate(begin, end) == pytest.approx(alone.rate(0, last), rel=0.1)
    said = [budget for _, number, budget in sim.trace.budgets if number > spans[2][0]]
    assert said  # the new controller commands


class _Silent:
    """A controller that has nothing to say."""

    def calibrated(self, forward_us) -> None: ...
    def observe_round(self, stats) -> None: ...
    def observe_draft(self, stats) -> None: ...
    def decide(self) -> list:
        return []
