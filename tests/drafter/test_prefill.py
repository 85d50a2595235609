"""A long prompt is computed in bounded pieces: the drafter stays alive, and other streams go on meanwhile."""

import asyncio
from dataclasses import replace

import pytest

from actors.drafter.prefill import CHUNK_S, LARGEST, SMALLEST, Prefill
from actors.verifier.state import TTL_MS
from protocols.handshake import MAX_BUSY_MS
from tests.world.simulation import Fixed, Simulation, World

WORLD = World(forward=100_000.0, step=5_000.0)
PROMPT = 5_000
TTL_S = TTL_MS / 1000


def long_prompt(prefill_s: float, method: str = "tree") -> Simulation:
    world = replace(WORLD, read=prefill_s * 1e6 / PROMPT)
    sim = Simulation(world, method, Fixed(method, 4))
    sim.at = PROMPT
    return sim


def longest_s(sim: Simulation) -> float:
    """The longest of all computations of the draft, which nothing can interrupt."""
    return max(seconds for _, seconds in sim.process.worked)


def drafted(sim: Simulation, rid: str = "r0") -> list[tuple[float, int]]:
    """When rounds of a stream ended that were drafted for, and how many tokens each accepted."""
    return [(at, stats.accepted) for at, stats in sim.trace.rounds if stats.rid == rid and stats.drafting.forwards]


@pytest.mark.parametrize("method", ["sps", "pearl", "duodecoding", "tree"])
def test_a_prompt_whose_prefill_takes_10_seconds_streams_with_drafts(method):
    sim = long_prompt(10.0, method)
    sim.play((sim.world, 300, 1))
    rounds = drafted(sim)
    assert 10.0 < rounds[0][0] < 11.5
    assert sum(accepted for _, accepted in rounds) > 60
    assert longest_s(sim) < 2 * CHUNK_S


def test_a_lease_survives_a_prefill_of_60_seconds_and_nothing_is_computed_twice():
    sim = long_prompt(60.0)
    sim.play((sim.world, 1000, 1))
    rounds = drafted(sim)
    assert 60.0 < rounds[0][0] < 90.0  # some 700 tokens are decoded meanwhile, and computed as well
    assert sim.draft.next_handle == 1
    assert sim.draft.tokens_read < PROMPT + 1000


def test_nobody_waits_for_a_drafter_that_is_still_reading():
    sim = long_prompt(10.0, "sps")
    sim.play((sim.world, 60, 1))
    assert not drafted(sim)
    waited = [stats.wait_us for _, stats in sim.trace.rounds if stats.rid == "r0"]
    assert sum(waited) / len(waited) < 0.1 * WORLD.forward


def test_a_running_stream_keeps_its_drafts_while_another_ones_prompt_is_read():
    sim = Simulation(replace(WORLD, read=20_000.0), "tree", Fixed("tree"))
    sim.joining_at = PROMPT
    _, (begin, end) = sim.play((sim.world, 100, 1), (sim.world, 200, 2))
    joined = drafted(sim, "r1")
    assert not joined or joined[0][0] > sim.trace.rounds[end - 1][0]  # still being read at the end
    mine = [stats for _, stats in sim.trace.rounds[begin:end] if stats.rid == "r0"]
    committed, us = sum(stats.committed for stats in mine), sum(stats.wall_us for stats in mine)
    assert committed / us > 1.3 / WORLD.forward  # plain decoding makes less than a token in that time


def test_what_was_computed_is_not_lost_with_the_lease():
    """The cable is cut in mid-prefill for longer than the time to live."""
    sim = long_prompt(10.0)

    async def cut() -> None:
        await asyncio.sleep(5.0)
        sim.network.partition("drafter")
        await asyncio.sleep(4.0)
        sim.network.heal("drafter")

    sim.beside.append(cut)
    sim.play((sim.world, 400, 1))
    assert sum(accepted for _, accepted in drafted(sim)) > 100
    assert sim.draft.tokens_read < PROMPT + 400


def test_a_drafter_whose_every_forward_outlasts_the_time_to_live_is_not_dropped():
    slow = World(forward=10e6, step=3e6, read=3e6)
    sim = Simulation(slow, "pearl", Fixed("pearl", 2))
    sim.at = 12
    sim.play((slow, 30, 1))
    assert longest_s(sim) > TTL_S
    assert sim.draft.next_handle == 1 and sim.draft.tokens_read < 12 + 30
    assert sum(accepted for _, accepted in drafted(sim)) > 5


def test_a_drafter_that_said_it_is_busy_and_died_is_dropped_all_the_same():
    slow = World(forward=1e6, step=3e6, read=3e6)
    sim = Simulation(slow, "pearl", Fixed("pearl", 2))
    sim.at = 12
    gone: list[bool] = []

    async def die() -> None:
        await asyncio.sleep(10.0)
        sim.network.partition("drafter")
        await asyncio.sleep(MAX_BUSY_MS / 1000 + 2 * TTL_S)
        gone.append(not sim.trace.rounds[-1][1].kind.drafter)

    sim.beside.append(die)
    sim.play((slow, 90, 1))
    assert gone == [True]


# --- the size of a chunk ---------------------------------------------------------------------------------------------


def settled(step_s: float, token_s: float) -> Prefill:
    prefill = Prefill(step_s)
    for _ in range(20):
        prefill.computed(prefill.chunk, prefill.chunk * token_s)
    return prefill


@pytest.mark.parametrize(("token_s", "chunk"), [(1e-6, LARGEST), (0.001, 50), (0.01, SMALLEST), (5.0, SMALLEST)])
def test_a_chunk_is_as_large_as_time_allows(token_s, chunk):
    prefill = settled(token_s, token_s)
    assert prefill.chunk == chunk
    assert prefill.time_s(prefill.chunk) <= max(CHUNK_S, SMALLEST * token_s)


def test_the_end_of_a_text_says_nothing_about_chunks():
    prefill = settled(0.001, 0.001)
    prefill.computed(1, 0.02)
    assert prefill.chunk == settled(0.001, 0.001).chunk


def test_chunks_and_steps_share_the_time_where_there_are_both():
    prefill = settled(0.001, 0.001)
    chunks = steps = 0.0
    for _ in range(1000):
        if prefill.due(growing=True):
            prefill.computed(prefill.chunk, prefill.time_s(prefill.chunk))
            chunks += prefill.time_s(prefill.chunk)
        else:
            prefill.grew(0.0015)
            steps += 0.0015
    assert steps / chunks == pytest.approx(1.0, abs=0.1)
    assert prefill.due(growing=False)
