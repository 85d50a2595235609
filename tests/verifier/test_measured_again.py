"""What a busy machine made look too dear is looked at again, also where nothing that is done any more would show it."""

import asyncio

from actors.cost import CostModel
from actors.verifier.budgets import Budgets
from actors.verifier.drafters import DrafterPeer
from actors.verifier.prospects import prior_speedup, worth_lending
from actors.verifier.sources.inline import READ
from actors.verifier.standing import PAYS, Standings
from actors.verifier.waits import DrafterPace
from protocols.messages import Hello, Role, Sampling
from tests.world.clock import run
from tests.world.inline_drafts import FORWARD_S, LONG, PROMPT, STEP_US, Counting, Unread, cluster, inline, one_stream

CALIBRATED = {1: 1000.0, 8: 1200.0, 16: 1500.0}


def as_calibrated(system):
    """The target's forwards go on taking what was measured of them."""
    start = system.start_verifier

    def started():
        start().state.cost.observe = lambda *round_, **of: None

    system.start_verifier = started
    return system


def test_a_draft_step_that_was_measured_too_slow_is_measured_again():
    model = Counting(skill=0.9)
    draft = inline(model, step_us={1: 50 * STEP_US[1]})
    sampling = Sampling(max_tokens=1500, ignore_eos=True)
    chunks = run(one_stream(cluster(model, inline=draft), sampling))
    assert chunks[-1].stats.rounds < 0.7 * sampling.max_tokens
    assert draft.steps(1) < 5 * STEP_US[1]


def test_texts_are_read_again_after_reading_was_measured_too_slow():
    model = Unread()
    draft = inline(model)
    draft.read_us.add(2 * FORWARD_S * 1e6, weight=READ)
    prompt = tuple(2 + i % 50 for i in range(600))
    system = as_calibrated(cluster(model, inline=draft))
    run(one_stream(system, Sampling(max_tokens=2000, ignore_eos=True), prompt=prompt))
    assert model.tokens_read


def test_a_draft_that_works_is_not_measured_for_its_own_sake():
    model = Counting(skill=0.9)
    draft = inline(model)
    probed = []
    run_probe = draft.probe.run
    draft.probe.run = lambda *asked: probed.append(run_probe(*asked))
    run(one_stream(as_calibrated(cluster(model, inline=draft)), LONG))
    assert [one for one in probed if one is not None] == []


def test_what_a_drafter_promises_follows_the_forwards_times():
    pace = DrafterPace(CostModel({1: 900.0}))
    drafter = DrafterPeer(b"d", Hello(Role.DRAFTER, "d", "1"), pace, 0.0, "d", Standings())
    cost, slow = CostModel(CALIBRATED), CostModel({rows: 8 * time for rows, time in CALIBRATED.items()})
    budgets = Budgets(cost)
    before = budgets.promise("auto", drafter, 1)
    cost.corrected(8.0)
    assert budgets.promise("auto", drafter, 1) == Budgets(slow).promise("auto", drafter, 1) > 1.5 * before


def test_a_drafter_that_has_lost_after_its_pause():
    async def story():
        model = Counting(skill=0.9)
        async with cluster(model, inline=inline(model, step_us={1: 900.0})) as system:
            drafter = system.start_drafter(step_us=100.0)
            await system.connected("d1")
            caller = await system.caller()
            asked = asyncio.ensure_future(caller.generate(PROMPT, LONG))
            while not (requests := list(system.verifier.state.requests)):
                await asyncio.sleep(FORWARD_S)
            state, request = system.verifier.state, requests[0]
            drafter = state.drafters.named("d1")
            standing = drafter.standing(request)
            for _ in range(100):
                standing.round(committed=1, without=1.5, wall_us=1000.0)
            assert standing.loses
            standing.pause()
            assert prior_speedup(state, request, drafter) < PAYS
            assert not drafter.takes(request, now=0.0)
            while standing.paused:
                standing.rested()
            assert drafter.takes(request, now=0.0) and worth_lending(state, request, drafter)
            await asked

    run(story())
