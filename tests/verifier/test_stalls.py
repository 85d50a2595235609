"""Long prompts beside running streams, in virtual time: how long their rounds become."""

from dataclasses import replace

import pytest

from tests.world.simulation import Simulation, World

WORLD = World(forward=2000.0, row=300.0, prompt_row=300.0, step=100.0)
PROMPT = 1500
NOISE = 0.1  # share of a round: forwards scatter by 3%


def rounds_beside(prompts: int, method: str, inline: bool, mixes: bool = True, world: World = WORLD) -> list[float]:
    """Time of the first stream's rounds, while so many prompts are computed: over what the same rounds of all these
    requests take without a prompt's rows."""
    sim = Simulation(world, method, seed=3, inline=inline)
    sim.target.mixes_prompts, sim.target.chunk, sim.joining_at = mixes, 256, PROMPT
    _, (begin, end) = sim.play((world, 30, 1), (world, 900 * prompts, 1 + prompts))
    rounds = [stats for _, stats in sim.trace.rounds[begin:end]]
    joined = next(number for number, stats in enumerate(rounds) if stats.rid == f"r{prompts}")
    own = [one for one in rounds[:joined] if one.rid == "r0"]
    return [(one.wall_us - one.wait_us) / (world.rows(1 + prompts + one.window) + world.code) for one in own]


@pytest.mark.parametrize("inline", [False, True], ids=["thread", "inline"])
@pytest.mark.parametrize(("method", "prompts"), [("vanilla", 1), ("vanilla", 3), ("auto", 1)])
def test_a_running_stream_waits_two_rounds_at_most_beside_long_prompts(method, prompts, inline):
    rounds = rounds_beside(prompts, method, inline)
    assert len(rounds) > 20
    assert max(rounds[1:]) < 2 + NOISE


def test_it_waits_hardly_longer_where_rows_take_ever_longer():
    """Few large pieces, of which the last rows take three times as long as the first."""
    rounds = rounds_beside(1, "vanilla", True, world=replace(WORLD, prompt_row=30, sight=0.04))
    assert len(rounds) > 20
    assert max(rounds[1:]) < 2.1 + NOISE


def test_a_forward_of_a_prompts_own_adds_one_round():
    assert max(rounds_beside(1, "vanilla", True, mixes=False)[1:]) < 3 + NOISE


def test_a_prompt_is_ready_sooner_where_it_shares_the_forwards_of_rounds():
    apart, mixed = (sum(rounds_beside(1, "vanilla", False, mixes)) for mixes in (False, True))
    assert mixed < 0.7 * apart
