"""The controller in virtual time: its gamma against the best fixed one, and what a change of the world does to it."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from actors.chains import Costs
from actors.controller.climb import Control
from actors.cost import Curve
from protocols.messages import Budget, Drafting, Kind, Plan, RoundStats
from tests.world.simulation import Fixed, Simulation, World

SEED = 100
SETTLES, STRETCH = 300, 300  # tokens
WORLD = World()
USELESS = replace(WORLD, skill=0.0, boast=0.5)
NAMED = ("sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree")


@cache
def fixed(world: World, method: str, gamma: int) -> float:
    """Tokens per second with that gamma, the mean of two texts."""
    rates = []
    for seed in (SEED, SEED + 1):
        sim = Simulation(world, method, Fixed(method, gamma), seed=seed)
        sim.at += SETTLES
        sim.play((world, 50 + STRETCH + 20, 1))
        rates.append(sim.rate_over(50, 50 + STRETCH))
    return sum(rates) / 2


def settled(budgets: list[Budget]) -> int:
    """The gamma that was in force most of the time: neighbours are tried in between."""
    return Counter(budget.gamma for budget in budgets).most_common(1)[0][0]


def close_to_best(world: World, method: str, gamma: int) -> bool:
    around = (max(1, gamma // 2), gamma, 3 * gamma // 2 + (gamma == 1), 2 * gamma)
    best = max(fixed(world, method, min(32, one)) for one in around)
    return fixed(world, method, gamma) >= (0.95 - 0.03) * best  # two texts of 300 tokens scatter by some 3%


@pytest.mark.parametrize(("c", "method", "chance"), [(4, "sps", 0.5), (8, "pearl", 0.9), (20, "duodecoding", 0.9)])
def test_gamma_goes_to_within_5_percent_and_noise_of_the_best_fixed_goodput(c: int, method: str, chance: float):
    world = replace(WORLD, skill=chance, step=WORLD.forward / c)
    sim = Simulation(world, method, seed=SEED)
    sim.play((world, SETTLES + STRETCH, 1))
    said = [budget for _, rounds, budget in sim.trace.budgets if rounds >= sim.round_at(SETTLES)]
    assert close_to_best(world, method, settled(said))


def test_eight_streams_that_are_drafted_for_in_turns_have_97_percent_of_the_best_fixed_goodput():
    world = replace(WORLD, skill=0.85)

    def goodput(control: Fixed | None = None) -> float:
        """Tokens per second, once a control has settled."""
        rates = []
        for seed in (3, 4):
            sim = Simulation(world, "sps", control, seed=seed)
            _, (begin, end) = sim.play((world, 200, 8), (world, 120, 8))
            rates.append(sim.rate(begin, end))
        return sum(rates)

    assert goodput() >= 0.97 * goodput(Fixed("sps", 8))


def test_gamma_follows_a_drafter_whose_core_becomes_busy():
    slow, method = replace(WORLD, step=5 * WORLD.step), "pearl"
    sim = Simulation(WORLD, method, seed=SEED)
    (_, before), (_, end) = sim.play((WORLD, SETTLES, 1), (slow, SETTLES + STRETCH, 1))
    said = [budget for _, rounds, budget in sim.trace.budgets if rounds >= (before + end) // 2]
    first = settled([budget for _, rounds, budget in sim.trace.budgets if rounds < before])
    assert settled(said) < first
    assert close_to_best(slow, method, settled(said))


@pytest.mark.parametrize("inline", [False, True], ids=["thread", "inline"])
def test_under_auto_a_useless_drafter_rests_and_costs_nothing(inline: bool):
    sim = Simulation(USELESS, "auto", seed=SEED, inline=inline)
    ((_, end),) = sim.play((USELESS, 600, 1))
    alone = Simulation(USELESS, "vanilla", seed=SEED, inline=inline)
    alone.play((USELESS, 600, 1))
    rounds = [stats for _, stats in sim.trace.rounds[60:]]
    assert sim.rate(60, end) > 0.97 * alone.rate(60, end)
    without = sum(stats.plan is None for stats in rounds)
    assert 0.8 < without / len(rounds) < 1.0  # it is tried again now and then


@pytest.mark.parametrize("method", NAMED)
def test_a_method_that_a_user_names_always_drafts(method: str):
    sim = Simulation(USELESS, method, seed=SEED)
    ((_, end),) = sim.play((USELESS, 300, 1))
    assert not any(stats.kind.drafter and stats.plan is None for _, stats in sim.trace.rounds)
    assert all(stats.plan is None or (stats.plan.gamma or 1) >= 1 for _, stats in sim.trace.rounds)
    assert sum(bool(stats.drafting.forwards) for _, stats in sim.trace.rounds) > 0.9 * end


def test_a_drafter_that_becomes_useful_is_used_again():
    sim = Simulation(USELESS, "auto", seed=SEED)
    _, (begin, _) = sim.play((USELESS, 200, 1), (WORLD, 1500, 1))
    assert any(stats.plan is None for _, stats in sim.trace.rounds[:begin])
    assert all(stats.plan is not None for _, stats in sim.trace.rounds[-100:])


def test_without_its_controller_a_stream_falls_to_what_the_start_up_calibration_gives():
    method = "auto"
    sim = Simulation(WORLD, method, seed=SEED)
    spans = sim.play((WORLD, 200, 1), (WORLD, 1800, 1, False), (WORLD, 300, 1))
    begin, end = spans[1][1] - (spans[1][1] - spans[1][0]) // 6, spans[1][1]  # the last budget has run out
    assert sim.trace.rounds[begin][0] - sim.trace.rounds[spans[1][0]][0] > 5.0
    alone = Simulation(WORLD, method, _Silent(), seed=SEED)
    alone.at = sim.at + sim.tokens(begin)
    ((_, last),) = alone.play((WORLD, sim.tokens(end) - sim.tokens(begin), 1))
    assert sim.rate(begin, end) == pytest.approx(alone.rate(0, last), rel=0.1)
    assert any(number > spans[2][0] for _, number, _ in sim.trace.budgets)  # the new controller commands


class _Silent:
    """A controller that has nothing to say."""

    def calibrated(self, forward_us) -> None: ...
    def observe_round(self, stats) -> None: ...
    def observe_draft(self, stats) -> None: ...
    def decide(self) -> list[Budget]:
        return []


# --- pieces ----------------------------------------------------------------------------------------------------------


def test_a_setting_climbs_to_where_rounds_are_measurably_faster():
    control = Control()
    control.calibrated([(1, 10_000.0)])  # the drafter's steps are not known: a start of gamma 9
    seen = []
    for number in range(4000):
        gamma = seen[-1] if seen else 9
        wall = 10_000.0 + 400.0 * abs(gamma - 20)  # the best is 20, whatever the start thinks
        stats = RoundStats(
            "r", number, Kind("pearl", "d"), 4, 3, 4, 5, 9000.0, 0.0, wall,
            plan=Plan("pearl", gamma), drafting=Drafting(ranks=(1, 1, 1, 2)),
        )  # fmt: skip
        control.observe_round(stats)
        seen += [budget.gamma for budget in control.decide()]
    assert 16 <= Counter(seen[-1000:]).most_common(1)[0][0] <= 24


def test_a_chain_is_verified_as_far_as_its_rows_pay():
    flat, steep = Curve({1: 10_000.0, 64: 10_000.0}), Curve({1: 10_000.0, 64: 640_000.0})
    lengths = [Costs(rows, Curve({1: 500.0}), 1.0, 300.0, 0.0, 1, 0.7).window(1e-4) for rows in (flat, steep)]
    assert lengths == [31, 1]
