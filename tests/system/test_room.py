"""Requests share the KV pool and the queue: who waits, who gives way, who is refused, and that no text changes."""

import asyncio

import pytest

from protocols.messages import Cancel, Chunk, Failed, FailureCode, Generate, Sampling
from protocols.security import Holder
from tests.world.caller import tokens_of
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage, ToyTarget
from tests.world.network import MemoryNetwork

LANGUAGE = ToyLanguage()
LONG = Sampling(max_tokens=60)
ENDLESS = Sampling(max_tokens=4000, ignore_eos=True)


def request(rid: str, sampling: Sampling = LONG, **fields) -> Generate:
    return Generate(rid, tuple(rid.encode()[-1] % 60 + i for i in range(4)), sampling=sampling, **fields)


def truth(asked: Generate) -> list[int]:
    return LANGUAGE.continuation(asked.prompt, asked.sampling)


def small_pool(slots: int, **settings) -> Cluster:
    """Requests take 16 slots beside their text."""
    return Cluster(language=LANGUAGE, target=ToyTarget(LANGUAGE, slots, ahead=16), **settings)


async def failure(caller, rid: str) -> Failed:
    """The failure of that request; it may have come while others' were waited for."""
    while True:
        for message in caller.seen:
            if isinstance(message, Failed) and message.rid == rid:
                return message
        await caller.next()


async def begun(caller, rid: str) -> None:
    await caller.until(lambda m: isinstance(m, Chunk) and m.rid == rid)


@pytest.mark.parametrize(("method", "temperature"), [("auto", 0.0), ("auto", 1.0), ("vanilla", 1.0)])
async def test_streams_that_outgrow_the_pool_give_way_in_turn_and_every_text_is_the_same(method, temperature):
    asked = [request(f"r{i}", Sampling(max_tokens=60, temperature=temperature, seed=7)) for i in range(6)]
    async with small_pool(150) as cluster:
        cluster.start_drafter()
        await cluster.connected("d1")
        caller = await cluster.caller()
        for one in asked:
            caller.send(Generate(one.rid, one.prompt, sampling=one.sampling, method=method))
        chunks = await caller.collect(*(one.rid for one in asked))
        assert {one.rid: tokens_of(chunks[one.rid]) for one in asked} == {one.rid: truth(one) for one in asked}
        assert cluster.verifier.state.counters["preempted"] > 0
        while cluster.target.kv_used:
            await asyncio.sleep(0.01)


async def test_statistics_and_the_prompts_length_are_told_once_however_often_a_request_gave_way():
    async with small_pool(90) as cluster:
        caller = await cluster.caller()
        for rid in ("a", "b"):
            caller.send(request(rid))
        chunks = await caller.collect("a", "b")
        assert cluster.verifier.state.counters["preempted"] > 0
        for chunk in chunks.values():
            assert [c.prompt_tokens for c in chunk if c.prompt_tokens] == [4]
            assert chunk[-1].stats.completion_tokens == len(tokens_of(chunk))


async def test_the_lowest_number_is_served_first_and_equals_in_their_order():
    async with Cluster(language=LANGUAGE, target=ToyTarget(LANGUAGE, 64)) as cluster:  # one at a time
        caller = await cluster.caller()
        for rid, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)):
            caller.send(request(rid, priority=priority))
        chunks = await caller.collect("a", "b", "c", "d", "e")
        assert all(chunks.values())
        assert [rid for rid in ends([caller]) if rid != "a"] == ["c", "e", "b", "d"]


async def test_whoever_has_the_highest_number_gives_way_though_it_came_first():
    async with small_pool(90) as cluster:
        caller = await cluster.caller()
        caller.send(request("patient", priority=1))
        caller.send(request("urgent"))
        await caller.collect("patient", "urgent")
        assert ends([caller]) == ["urgent", "patient"]


def ends(callers) -> list[str]:
    """Requests in the order in which they ended; each caller's, if there are several."""
    seen = [m for caller in callers for m in caller.seen]
    return [m.rid for m in seen if isinstance(m, Chunk) and m.finish_reason is not None]


async def test_a_number_takes_no_room_of_a_running_stream_with_another_salt():
    async with small_pool(90) as cluster:
        caller = await cluster.caller()
        caller.send(request("patient", priority=1, cache_salt="one API key"))
        caller.send(request("pushy", priority=-9, cache_salt="another"))
        await caller.collect("patient", "pushy")
        assert cluster.verifier.state.counters["preempted"] > 0
        assert ends([caller]) == ["patient", "pushy"]


async def test_a_number_takes_no_room_of_a_running_stream_of_another_connections_key():
    network = MemoryNetwork()
    network.holders |= {"one": Holder(b"one"), "another": Holder(b"another")}
    async with Cluster(network, LANGUAGE, target=ToyTarget(LANGUAGE, 90, ahead=16)) as cluster:
        one, another = await cluster.caller("one"), await cluster.caller("another")
        one.send(request("patient", priority=1))
        await begun(one, "patient")
        another.send(request("pushy", priority=-9))
        await one.collect("patient")
        assert ends([another]) == []
        await another.collect("pushy")
        assert cluster.verifier.state.counters["preempted"] > 0


async def test_a_number_passes_own_requests_in_the_queue_and_nobody_elses():
    async with Cluster(language=LANGUAGE, target=ToyTarget(LANGUAGE, 64)) as cluster:  # one at a time
        caller = await cluster.caller()
        for rid, priority, salt in (("a", 0, "x"), ("b", 0, "x"), ("c", 0, "y"), ("d", 0, "x"), ("e", -9, "x")):
            caller.send(request(rid, priority=priority, cache_salt=salt))
        await caller.collect("a", "b", "c", "d", "e")
        assert [rid for rid in ends([caller]) if rid != "a"] == ["e", "c", "b", "d"]


async def test_a_number_takes_no_place_in_the_queue_from_another_salt():
    async with Cluster(target=ToyTarget(slots=4096), max_queued_requests=1, forward_s=0.001) as cluster:
        caller = await cluster.caller()
        caller.send(request("running", ENDLESS))
        await begun(caller, "running")
        caller.send(request("waiting", ENDLESS, cache_salt="one API key"))
        caller.send(request("pushy", priority=-9, cache_salt="another"))
        assert (await failure(caller, "pushy")).code is FailureCode.OVERLOADED


async def test_one_more_than_may_wait_is_told_when_to_come_again():
    async with Cluster(target=ToyTarget(slots=4096), max_queued_requests=2, forward_s=0.001) as cluster:
        caller = await cluster.caller()
        caller.send(request("running", ENDLESS))
        await begun(caller, "running")
        for rid in ("a", "b", "c"):
            caller.send(request(rid, ENDLESS))
        refused = await failure(caller, "c")
        assert refused.code is FailureCode.OVERLOADED and refused.retry_after_ms >= 100


async def test_an_urgent_request_takes_the_place_of_the_last_that_waits():
    async with Cluster(target=ToyTarget(slots=4096), max_queued_requests=1, forward_s=0.001) as cluster:
        caller = await cluster.caller()
        caller.send(request("running", ENDLESS))
        await begun(caller, "running")
        caller.send(request("waiting", ENDLESS))
        caller.send(request("urgent", priority=-1))
        assert (await failure(caller, "waiting")).code is FailureCode.OVERLOADED
        caller.send(Cancel("running"))
        assert truth(request("urgent")) == tokens_of((await caller.collect("urgent"))["urgent"])


async def test_a_request_ends_at_its_deadline_whether_it_runs_or_waits():
    async with Cluster(target=ToyTarget(slots=4096), forward_s=0.001) as cluster:
        caller = await cluster.caller()
        caller.send(request("running", ENDLESS, deadline_ms=100.0))
        caller.send(request("waiting", ENDLESS, deadline_ms=50.0))
        failures = {rid: await failure(caller, rid) for rid in ("waiting", "running")}
        assert {failed.code for failed in failures.values()} == {FailureCode.DEADLINE_EXCEEDED}
        assert "50 ms" in failures["waiting"].detail
        caller.send(request("next", deadline_ms=60_000.0))
        assert truth(request("next")) == tokens_of((await caller.collect("next"))["next"])


async def test_a_cancelled_request_has_no_room_any_more_when_the_next_round_begins():
    async with Cluster(target=ToyTarget(slots=4096), forward_s=0.001) as cluster:
        caller = await cluster.caller()
        caller.send(request("a", ENDLESS))
        await begun(caller, "a")
        caller.send(request("b"))
        caller.send(Cancel("a"))
        rounds = cluster.target.rounds
        await begun(caller, "b")
        assert cluster.target.rounds <= rounds + 2


async def test_what_runs_is_finished_before_the_verifier_leaves_and_the_rest_is_handed_back():
    async with Cluster(language=LANGUAGE, target=ToyTarget(slots=128), shutdown_timeout=60.0, forward_s=0.001) as c:
        caller = await c.caller()
        caller.send(request("running"))
        await begun(caller, "running")
        caller.send(request("waiting", Sampling(max_tokens=120)))
        await asyncio.sleep(0.01)
        c.stops["verifier"].set()
        assert (await failure(caller, "waiting")).code is FailureCode.DRAINING
        caller.send(request("late"))
        assert (await failure(caller, "late")).code is FailureCode.DRAINING
        last = await caller.until(lambda m: isinstance(m, Chunk) and m.finish_reason is not None)
        got = [t for m in caller.seen if isinstance(m, Chunk) and m.rid == "running" for t in m.token_ids]
        assert last.rid == "running" and got == truth(request("running"))
        await c.tasks["verifier"]


async def test_what_takes_too_long_is_handed_back_when_the_time_is_up():
    async with Cluster(shutdown_timeout=0.05, forward_s=0.001) as cluster:
        caller = await cluster.caller()
        caller.send(request("a", ENDLESS))
        await begun(caller, "a")
        cluster.stops["verifier"].set()
        assert (await failure(caller, "a")).code is FailureCode.DRAINING


async def test_a_second_signal_ends_the_verifier_at_once():
    async with Cluster(shutdown_timeout=3600.0, forward_s=0.001) as cluster:
        caller = await cluster.caller()
        caller.send(request("a", ENDLESS))
        await begun(caller, "a")
        cluster.stops["verifier"].set()
        await asyncio.sleep(0.01)
        cluster.stops["verifier"].set()
        assert (await failure(caller, "a")).code is FailureCode.DRAINING


async def test_a_client_that_does_not_read_holds_up_nobody_else():
    async with Cluster(language=LANGUAGE) as cluster:
        slow, brisk = await cluster.caller("slow"), await cluster.caller("brisk")
        slow.link.inbox.capacity = 3
        slow.send(request("s", ENDLESS))
        brisk.send(request("b"))
        assert tokens_of((await brisk.collect("b"))["b"]) == truth(request("b"))
        while cluster.verifier.state.requests:
            await asyncio.sleep(0.01)
