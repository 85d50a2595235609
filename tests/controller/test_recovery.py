"""Two seconds after the world has changed, a stream is as fast as if it had always been so. Virtual time."""

from dataclasses import replace
from functools import cache

import pytest

from tests.world.simulation import Simulation, World

WORLD, SEED = World(), 5
BEFORE, AFTER = 300, 1300  # tokens
CHANGES = {
    "worse drafts": replace(WORLD, skill=0.3),
    "better drafts": replace(WORLD, skill=0.92),
    "a slow drafter": replace(WORLD, step=4 * WORLD.step),
    "a fast drafter": replace(WORLD, step=WORLD.step / 4),
    "a far drafter": replace(WORLD, message=4_000.0),
}


@cache
def always(method: str, world: World) -> Simulation:
    sim = Simulation(world, method, seed=SEED)
    sim.play((world, BEFORE + AFTER + 20, 1))
    return sim


@pytest.mark.parametrize(("method", "change"), [*(("auto", change) for change in CHANGES), ("pearl", "a slow drafter")])
def test_two_seconds_after_a_change_a_stream_is_as_fast_as_ever(method: str, change: str):
    world = CHANGES[change]
    sim = Simulation(WORLD, method, seed=SEED)
    (_, changed), (_, end) = sim.play((WORLD, BEFORE, 1), (world, AFTER, 1))
    rounds = sim.trace.rounds
    first = next(at for at in range(changed, end) if rounds[at][0] >= rounds[changed][0] + 2.0)
    begin, last = sim.tokens(first), min(sim.tokens(end), BEFORE + AFTER)
    assert last - begin > 150
    assert sim.rate_over(begin, last) > 0.95 * always(method, world).rate_over(begin, last)
