"""What is learnt from one kind of requests decides nothing for another (issue 9, point 16)."""

import asyncio
import random

import msgspec

from actors.controller.climb import Control
from protocols.limits import MAX_BUDGETS
from protocols.messages import Drafting, DraftStats, Kind, Plan, RoundStats, Sampling
from tests.world.clock import run
from tests.world.cluster import Cluster


def rounds(method, *, skill, forward_us=10_000.0, count=120, seed=0, gamma=0, sequences=0):
    chance = random.Random(seed)
    for number in range(count):
        accepted = 0
        while accepted < 4 and chance.random() < skill:
            accepted += 1
        yield RoundStats(
            "r", number, Kind(method, "d", gamma, sequences), 4, accepted, accepted + 1, 5, forward_us, 0.0,
            forward_us + 200.0, plan=Plan(method, 4),
            drafting=Drafting(1, ranks=(1,) * accepted + (2,) * (accepted < 4)),
        )  # fmt: skip


def budgets_of(control, wanted, *others):
    """Budgets after ``wanted`` rounds, each followed by one of every other kind."""
    found = []
    for several in zip(wanted, *others, strict=True):
        for stats in several:
            control.observe_round(stats)
        found += [budget for budget in control.decide() if budget.kind == several[0].kind]
    return [msgspec.structs.replace(budget, revision=0) for budget in found]


def test_rows_of_a_benchmark_do_not_influence_each_other():
    for method, fixed in (("duodecoding", {}), ("duodecoding", {"sequences": 2}), ("auto", {}), ("sps", {})):
        alone = budgets_of(Control(), rounds(method, skill=0.7, **fixed))
        beside = budgets_of(
            Control(),
            rounds(method, skill=0.7, **fixed),
            rounds("duodecoding", skill=0.1, forward_us=40_000.0, sequences=3, seed=1),
            rounds("duodecoding", skill=0.9, gamma=9, seed=2),
            rounds("pearl", skill=0.2, forward_us=25_000.0, seed=3),
            rounds("tree", skill=0.2, forward_us=35_000.0, seed=4),
        )
        assert len(alone) > 50
        assert beside == alone


def test_a_client_that_asks_for_ever_other_lengths_costs_no_memory():
    control = Control()
    for gamma in range(1, 500):
        for stats in rounds("sps", skill=0.5, count=1, gamma=gamma):
            control.observe_round(stats)
    assert len(control.climbs) == MAX_BUDGETS
    control.decide()


def kinds(verifier):
    said = verifier.state.budgets.said(asyncio.get_running_loop().time())
    return {(one.kind.method, one.kind.gamma, one.kind.sequences) for one in said}


def test_a_budget_reaches_the_requests_that_it_is_for_and_no_others():
    async def story():
        async with Cluster() as cluster:
            cluster.start_drafter(skill=0.9)
            cluster.start_controller()
            await cluster.connected("d1")
            caller = await cluster.caller()
            await caller.generate((5, 9, 33), Sampling(max_tokens=100), "duodecoding", sequences=2)
            await asyncio.sleep(0.5)  # virtual: the controller decides ten times a second
            alone = kinds(cluster.verifier)
            await caller.generate((5, 9, 33), Sampling(max_tokens=100), "duodecoding")
            await asyncio.sleep(0.5)
            return alone, kinds(cluster.verifier)

    alone, both = run(story())
    assert alone == {("duodecoding", 0, 2)}
    assert both == {("duodecoding", 0, 2), ("duodecoding", 0, 0)}


def test_drafters_that_come_and_go_leave_nothing():
    control = Control()
    for number in range(3 * MAX_BUDGETS):
        control.observe_draft(DraftStats("stays", ((1, 100.0),), 0.5))
        control.observe_draft(DraftStats(f"drafter-{number}", ((1, 200.0),), 0.5))
    assert len(control.steps) == MAX_BUDGETS and "stays" in control.steps
