"""What a drafter is worth is measured, whatever it says; one that costs time is not lent anything for a while."""

from __future__ import annotations

import pytest
from hostile_drafters import ATTACKS, WORLDS, shares
from simulation import Simulation
from timed import World

from actors.verifier.drafters.standing import FIRST_PAUSE_S, MAX_STANDINGS, Standing, Standings

KEPT = 0.97


@pytest.mark.parametrize(
    "attack", ["rubbish below every next token", "long chains of rubbish", "silence", "rubbish nine times in ten"]
)
def test_a_hostile_drafter_costs_three_percent_at_most_within_a_hundred_rounds(attack: str) -> None:
    assert attack in ATTACKS
    _, later = shares(WORLDS["CPU"], attack, seed=0, inline=True, controlled=False)
    assert later >= KEPT


def test_a_drafter_that_loses_is_paused_each_time_for_longer_and_judged_anew() -> None:
    standing, now = Standing(), 100.0
    pauses = []
    for _ in range(3):
        while not standing.loses:
            standing.round(committed=1, without=1.3, wall_us=1000.0)
        standing.pause(now)
        assert standing.paused(now) and not standing.loses
        pauses.append(standing.paused_until - now)
    assert pauses == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    standing.pardon()
    assert not standing.paused(now)


def test_probabilities_are_taken_for_what_they_turned_out_to_be_worth() -> None:
    honest, liar = Standing(), Standing()
    for number in range(60):
        honest.claimed(0.7, right=number % 10 < 7)
        liar.claimed(1.0, right=number % 10 < 1)
    assert honest.trust == 1.0
    assert liar.trust < 0.3


def test_a_bad_name_is_kept_whoever_connects_again_and_their_number_is_bounded() -> None:
    standings = Standings()
    standings.of("d", "auto").pause(0.0)
    assert standings.of("d", "auto").paused(1.0) and not standings.of("d", "tree").paused(1.0)
    for number in range(2 * MAX_STANDINGS):
        standings.of(str(number), "auto")
    assert len(standings.all_of("d")) == 0


@pytest.mark.parametrize("better", ["drafter", "drafter-2"])
def test_a_stream_ends_up_with_the_drafter_that_brings_it_most(better: str) -> None:
    good, poor = World(skill=0.85), World(skill=0.35)
    here, there = (good, poor) if better == "drafter" else (poor, good)
    sim = Simulation(here, "auto", seed=3)
    sim.others["drafter-2"] = there
    sim.play((here, 900, 1))
    late = [stats.drafter for _, stats in sim.trace.rounds[-60:]]
    assert late.count(better) > 50
    assert {stats.drafter for _, stats in sim.trace.rounds} == {"drafter", "drafter-2"}  # both were measured
