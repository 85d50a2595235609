"""What others' prompts take is no part of a stream's round: no draft saves any of it, and no drafter is to blame."""

import pytest

from actors.verifier.streams import Request
from tests.world.simulation import Simulation
from tests.world.timed import World

WORLD = World(verify_us=2000.0, row_us=300.0, step_us=100.0, prompts=True)


@pytest.mark.parametrize("mixes", [False, True], ids=["apart", "mixed"])
def test_a_rounds_own_time_is_that_of_its_rows_while_prompts_are_computed_beside_it(mixes, monkeypatch):
    told = []
    books = Request.round_over

    def observed(request, now, forward_us, prompts_us):
        wall_us, wait_us, own_us = books(request, now, forward_us, prompts_us)
        told.append((request.rid, wall_us, wait_us, own_us))
        return wall_us, wait_us, own_us

    monkeypatch.setattr(Request, "round_over", observed)
    sim = Simulation(WORLD, "vanilla", seed=3)
    sim.target.mixes_prompts = mixes
    sim.joining_at = 1500
    sim.play((WORLD, 30, 1), (WORLD, 900, 2))
    rounds = [one for one in told if one[0] == "r0"]
    stalled = [one for one in rounds if one[1] > 2 * WORLD.verify(2)]
    assert len(stalled) > 10  # by pieces of the other's prompt
    for _, _, wait_us, own_us in stalled[1:]:
        assert own_us - wait_us < 1.3 * WORLD.verify(2)
