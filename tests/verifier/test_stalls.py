"""Long prompts that arrive beside a running stream, on virtual time: how long its rounds wait for them."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from actors.verifier.judging import Judge
from actors.verifier.scheduler import MAX_DRAFTS, MAX_STALL
from actors.verifier.sources.inline import READ
from protocols.messages import Sampling
from tests.world.clock import run
from tests.world.inline_drafts import FORWARD_S, Unread, cluster, inline
from tests.world.simulation import Simulation
from tests.world.timed import World

WORLD = World(verify_us=2000.0, row_us=300.0, step_us=100.0, prompts=True)  # a chunk takes 34 rounds' time


def rounds_beside(prompts: int, method: str, inline: bool, mixes: bool = False, world: World = WORLD) -> list[float]:
    """Time of the first stream's rounds, while so many prompts are computed: over what a round of all these requests
    takes, without drafts where they share its forward."""
    sim = Simulation(world, method, seed=3, inline=inline)
    sim.target.mixes_prompts = mixes
    sim.joining_at = 1500
    _, (begin, end) = sim.play((world, 30, 1), (world, 900 * prompts, 1 + prompts))
    rounds = [stats for _, stats in sim.trace.rounds[begin:end]]
    joined = next(number for number, stats in enumerate(rounds) if stats.rid == f"r{prompts}")
    own = [one for one in rounds[:joined] if one.rid == "r0"]
    return [(one.wall_us - one.wait_us) / world.verify(1 + prompts + (not mixes) * one.window) for one in own]


@pytest.mark.parametrize("mixes", [False, True], ids=["apart", "mixed"])
@pytest.mark.parametrize("inline", [False, True], ids=["thread", "inline"])
@pytest.mark.parametrize(("method", "prompts"), [("vanilla", 1), ("vanilla", 3), ("auto", 1)])
def test_long_prompts_stall_a_running_stream_for_no_more_than_two_rounds(method, prompts, inline, mixes):
    stalled = rounds_beside(prompts, method, inline, mixes)
    assert len(stalled) > 20
    assert max(stalled[1:]) < 1 + MAX_STALL + 0.3  # of that a tenth is the verifier's own time


@pytest.mark.parametrize("prompts", [1, 3])
@pytest.mark.parametrize("method", ["vanilla", "auto"])
def test_a_prompts_rows_take_longer_the_longer_it_is_and_streams_wait_no_longer(method, prompts):
    stalled = rounds_beside(prompts, method, True, True, replace(WORLD, context=5e-4))
    assert len(stalled) > 20
    assert max(stalled[5:]) < 1 + MAX_STALL + 0.3


def test_a_prompt_is_ready_sooner_where_it_shares_the_forwards_of_rounds():
    apart, mixed = (rounds_beside(1, "vanilla", False, mixes) for mixes in (False, True))
    assert sum(mixed) < 0.7 * sum(apart)


def drafts_beside(prompts: int, world: World) -> list[int]:
    """Rows of drafts in the rounds that share their forwards with the last of so many prompts."""
    sim = Simulation(world, "auto", seed=3, inline=True)
    sim.target.mixes_prompts = True
    sim.joining_at = 1500
    _, (begin, end) = sim.play((world, 30, 1), (world, 900 * prompts, 1 + prompts))
    rounds = [stats for _, stats in sim.trace.rounds[begin:end]]
    rids = [one.rid for one in rounds]
    return [one.window for one in rounds[rids.index(f"r{prompts - 1}") + prompts : rids.index(f"r{prompts}")]]


@pytest.mark.parametrize(("streams", "row_us", "drafted"), [(1, 300.0, True), (2, 300.0, False), (2, 10.0, True)])
def test_several_streams_leave_a_prompt_the_rows_that_there_is_time_for(streams, row_us, drafted):
    windows = drafts_beside(streams, World(verify_us=2000.0, row_us=row_us, step_us=100.0, prompts=True))
    assert len(windows) > 5
    assert any(windows) is drafted


def test_rounds_beside_a_prompt_that_can_hold_no_drafts_tell_nothing_of_whether_drafts_pay(monkeypatch):
    """Seen: rounds without drafts were learnt from beside prompts, where they are slower, and rounds with drafts were
    not: 32 streams went on drafting at 0.8 of their speed."""
    seen, pays = [], iter(itertools.cycle((True, False)))
    monkeypatch.setattr(Judge, "guesses_pay", lambda *_: next(pays))
    monkeypatch.setattr(Judge, "of_own", lambda _, job, *times: seen.append(job))
    drafts_beside(2, WORLD)
    several = [job for job in seen if job.load.streams > 1]
    assert {job.guesses for job in several if job.piece is not None} == {None}
    assert {job.guesses for job in several if job.piece is None} == {True, False}


def test_a_piece_beside_streams_has_all_rows_that_there_is_time_for():
    sim = Simulation(replace(WORLD, row_us=30.0), "vanilla", seed=3)
    sim.target.mixes_prompts = True
    sim.joining_at = 1500
    sim.play((sim.stage.world, 30, 1), (sim.stage.world, 30, 2))
    beside = sim.target.pieces[1:]  # the first stream's prompt was computed when nobody waited
    assert sum(beside) == 1500 and max(beside[:-1]) > 100  # two rounds of 2 ms have time for 133 rows


def test_where_nobody_waits_a_prompt_is_computed_in_whole_chunks():
    sim = Simulation(WORLD, "vanilla", seed=3)
    sim.at = 1500
    sim.play((WORLD, 10, 1))
    assert sim.target.pieces == [256] * 5 + [220]


class SlowReader(Unread):
    """Reading a token takes 40 µs of its clock."""

    def __init__(self):
        super().__init__()
        self.now_s, self.slices = 0.0, []
        self.decoding = self.read_us = None

    def prefill(self, handle, limit):
        """The slices: how many decoded, their tokens, and the microseconds that they were expected to take."""
        super().prefill(handle, limit)
        self.slices.append((self.decoding(), limit, limit * self.read_us.mean))
        self.now_s += 40e-6 * limit


@pytest.mark.parametrize("streams", [1, 2])
def test_the_verifiers_own_draft_reads_a_long_text_in_slices_of_half_a_round_where_others_wait(streams):
    model = SlowReader()
    draft = inline(model, timer=lambda: model.now_s)
    model.read_us = draft.read_us
    draft.read_us.add(40.0, weight=READ)

    async def story():
        async with cluster(model, inline=draft) as system:
            model.decoding = lambda: len(system.verifier.state.requests.of("decode"))
            callers = [await system.caller() for _ in range(streams)]
            prompt = tuple(2 + i % 50 for i in range(600))
            await asyncio.gather(*(one.generate(prompt, Sampling(max_tokens=900, ignore_eos=True)) for one in callers))

    run(story())
    slices = [(tokens, us) for decoding, tokens, us in model.slices if decoding == streams]
    assert sum(tokens for _, tokens, _ in model.slices) >= 300 and len(slices) > 3
    if streams == 1:
        assert max(tokens for tokens, _ in slices) == READ
    else:
        half_us = MAX_DRAFTS * FORWARD_S * 1e6
        assert 0.25 * half_us < max(us for _, us in slices) <= 1.1 * half_us
