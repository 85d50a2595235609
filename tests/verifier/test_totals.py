"""The verifier's totals: sums over requests' own statistics, whatever drafted them and however they ended."""

from collections import Counter
from itertools import zip_longest

import pytest
from msgspec import structs

from actors.verifier.totals import Totals
from duoactor import AsyncClient
from protocols.messages import Kind, Method, Plan, RoundStats
from tests.world.caller import ADDRESS
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage


def test_sums_over_requests_are_the_totals():
    async def go():
        async with (
            Cluster(language=ToyLanguage(eos_rate=0.01)) as cluster,
            AsyncClient(ADDRESS, network=cluster.network.host("c")) as client,
        ):
            cluster.start_drafter("d1")
            cluster.start_drafter("d2", skill=0.3)
            await cluster.connected("d1", "d2")
            answers = []
            for method in ("sps", "tree", "vanilla", "pld", "auto"):
                for seed in range(3):
                    answers.append(
                        await client.generate([5, 9, seed], temperature=1.0, seed=seed, max_tokens=60, method=method)
                    )
            return [answer.stats for answer in answers], await client.status()

    stats, report = run(go())
    assert report.counters["prompt_tokens"] == sum(one.prompt_tokens for one in stats) == 45
    assert report.counters["generation_tokens"] == sum(one.completion_tokens for one in stats)
    assert report.counters["finished_stop"] + report.counters["finished_length"] == 15
    for method in ("sps", "tree", "vanilla", "pld", "auto"):
        own = [one for one in stats if one.method == method]
        totals = [one for one in report.totals if one.method == method]
        assert sum(one.draft_tokens for one in totals) == sum(one.draft_tokens for one in own)
        assert sum(one.accepted_tokens for one in totals) == sum(one.accepted_tokens for one in own)
        histogram = [sum(column) for column in zip_longest(*(one.acceptance_histogram for one in own), fillvalue=0)]
        per_position = [sum(histogram[at + 1 :]) for at in range(len(histogram) - 1)]
        found = [sum(column) for column in zip_longest(*(one.accepted_per_position for one in totals), fillvalue=0)]
        assert found == per_position
        assert sum(one.drafts for one in totals) <= sum(one.rounds for one in own)
    assert {one.drafter for one in report.totals if one.method == "sps"} <= {"d1", "d2"}
    assert {one.draft_tokens for one in report.totals if one.method == "vanilla"} == {0}


def test_a_cancelled_request_counts_as_far_as_it_came():
    async def go():
        async with (
            Cluster(language=ToyLanguage()) as cluster,
            AsyncClient(ADDRESS, network=cluster.network.host("c")) as client,
        ):
            got = 0
            async for chunk in client.stream([5, 9], max_tokens=4000, method="vanilla"):
                got += len(chunk.token_ids)
                if got > 10:
                    break
            return got, await client.status()

    got, report = run(go())
    assert report.counters["generation_tokens"] >= got
    assert "finished_length" not in report.counters


def rounds(*entries: tuple[int, float]) -> float:
    """The speed-up after rounds of (tokens, microseconds), where plain decoding takes 1000 a round."""
    totals = Totals(Counter())
    for committed, wall_us in entries:
        stats = RoundStats("r", 1, Kind("auto", "d"), 3, committed - 1, committed, 4, 900.0, 0.0, wall_us)
        totals.round(stats, wall_us, 1000.0)
    (report,) = totals.report()
    return report.speedup


def test_speed_up_is_tokens_per_time_over_plain_decodings():
    assert rounds((3, 1500.0)) == pytest.approx(2.0)
    assert rounds((1, 1000.0), (3, 1000.0)) == pytest.approx(2.0, rel=1e-3)
    assert rounds((1, 2000.0)) == pytest.approx(0.5)


def test_speed_up_follows_what_happens_now():
    assert rounds(*[(4, 1000.0)] * 10_000, *[(1, 1000.0)] * 160_000) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"window": 2, "accepted": 1, "committed": 2, "rows": 3}, False),  # drafts were verified
        ({"streams": 2, "rows": 2}, False),  # another stream shared the forward
        ({"rows": 65}, False),  # so did a prompt
        ({"wait_us": 300.0}, False),  # drafts were waited for, in vain
        ({"plan": Plan(Method.TREE)}, False),  # a drafter had its share of the machine
    ],
)
def test_the_plain_rate_rests_on_rounds_of_one_stream_that_nothing_was_drafted_for(changes, counts):
    totals, told = Totals(Counter()), RoundStats("r", 1, Kind("auto"), 0, 0, 1, 1, 900.0, 0.0, 1000.0)
    totals.round(structs.replace(told, **changes), 1000.0, 1000.0)
    assert dict(totals.counters) == ({"plain_tokens": 1, "plain_us": 1000} if counts else {})


def test_rates_leave_out_the_prompts_that_were_computed_between_two_rounds():
    totals, told = Totals(Counter()), RoundStats("r", 1, Kind("auto"), 0, 0, 1, 1, 900.0, 0.0, 9000.0)
    totals.round(told, 1000.0, 1000.0)
    assert totals.counters["plain_us"] == 1000
    assert totals.report()[0].speedup == pytest.approx(1.0)
