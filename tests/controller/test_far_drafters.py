"""A drafter on another machine: the nearer the more it brings, and one that is too far costs next to nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hostile_drafters import absent
from simulation import Simulation
from timed import World

NEAR = World(lost=0.01)


@pytest.fixture(scope="module")
def alone() -> Simulation:
    """Without a drafter."""
    sim = Simulation(NEAR, "auto", seed=1)
    sim.tamper = absent
    sim.play((NEAR, 600, 1))
    return sim


# Rounds take 10 ms here, so that at 20 ms each way drafts are four rounds old. The model of a round knows no draft that
# is under way for longer than one: the controller rests such a drafter where its drafts could still bring 15%.
@pytest.mark.parametrize(("ms", "least"), [(1, 2.0), (5, 1.5), (20, 0.94), (50, 0.97)])
def test_what_a_drafter_brings_by_its_distance_with_one_message_in_a_hundred_lost(alone, ms: float, least: float):
    sim = Simulation(replace(NEAR, message_us=1000 * ms), "auto", seed=1)
    sim.play((replace(NEAR, message_us=1000 * ms), 600, 1))
    assert sim.rate_over(150, 580) / alone.rate_over(150, 580) >= least
