"""Long prompts that arrive beside a running stream, on virtual time: how long its rounds wait for them."""

import pytest
from simulation import Simulation
from timed import World

from actors.verifier.schedule import MAX_STALL

WORLD = World(verify_us=2000.0, row_us=300.0, step_us=100.0, prompts=True)  # a chunk takes 34 rounds' time


def rounds_beside(prompts: int, method: str, inline: bool, mixes: bool = False) -> list[float]:
    """Time of the first stream's rounds over what their own rows take, while so many prompts are computed."""
    sim = Simulation(WORLD, method, seed=3, inline=inline)
    sim.target.mixes_prompts = mixes
    sim.joining_at = 1500
    _, (begin, end) = sim.play((WORLD, 30, 1), (WORLD, 900 * prompts, 1 + prompts))
    rounds = [stats for _, stats in sim.trace.rounds[begin:end]]
    joined = next(number for number, stats in enumerate(rounds) if stats.rid == f"r{prompts}")
    own = [one for one in rounds[:joined] if one.rid == "r0"]
    return [(one.wall_us - one.wait_us) / WORLD.verify(one.streams + one.window) for one in own]


@pytest.mark.parametrize("mixes", [False, True], ids=["apart", "mixed"])
@pytest.mark.parametrize("inline", [False, True], ids=["thread", "inline"])
@pytest.mark.parametrize(("method", "prompts"), [("vanilla", 1), ("vanilla", 3), ("auto", 1)])
def test_long_prompts_stall_a_running_stream_for_no_more_than_two_rounds(method, prompts, inline, mixes):
    stalled = rounds_beside(prompts, method, inline, mixes)
    assert len(stalled) > 20
    assert max(stalled[1:]) < 1 + MAX_STALL + 0.3  # of that a tenth is the verifier's own time


def test_a_prompt_is_ready_sooner_where_it_shares_the_forwards_of_rounds():
    apart, mixed = (rounds_beside(1, "vanilla", False, mixes) for mixes in (False, True))
    assert sum(mixed) < 0.7 * sum(apart)


def test_where_nobody_waits_a_prompt_is_computed_in_whole_chunks():
    sim = Simulation(WORLD, "vanilla", seed=3)
    sim.at = 1500
    sim.play((WORLD, 10, 1))
    assert sim.target.pieces == [256] * 5 + [220]
