"""A drafter on another machine: the nearer the more it brings, and one that is too far costs next to nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.world.hostile_drafters import absent
from tests.world.simulation import Simulation, World

LOST = (0.0, 0.01)  # share of the messages


@cache
def played(ms: float | None, lost: float) -> Simulation:
    """A text with a drafter so far away; None: without one."""
    world = replace(World(lost=lost), message=1000 * (ms or 0.1))
    sim = Simulation(world, "auto", seed=1)
    if ms is None:
        sim.tamper = absent
    sim.play((world, 600, 1))
    return sim


def speedup(ms: float, lost: float) -> float:
    return played(ms, lost).rate_over(150, 580) / played(None, lost).rate_over(150, 580)


# Rounds take 10 ms here. At 20 ms each way drafts are four rounds old: one setting, held by hand, could bring 15%
# where all tokens of four rounds follow them. The verifier rests such a drafter, and tries it again now and then.
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize(("ms", "least"), [(1, 2.2), (5, 1.6), (20, 0.97), (50, 0.97)])
def test_what_a_drafter_brings_by_its_distance(ms: float, least: float, lost: float):
    assert speedup(ms, lost) >= least


@pytest.mark.parametrize("lost", LOST)
def test_a_drafter_that_is_too_far_rests(lost: float):
    rounds = [stats for _, stats in played(20, lost).trace.rounds]
    assert sum(stats.plan is None for stats in rounds) > 0.8 * len(rounds)
