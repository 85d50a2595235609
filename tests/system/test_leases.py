"""Who drafts for whom: leases that find no room, move, come back and end; and KV slots that nobody loses."""

import asyncio

import pytest

from protocols.messages import (
    Chunk,
    Close,
    Decline,
    Done,
    DrainActor,
    Generate,
    Open,
    Sampling,
    Status,
    StatusReport,
    Swap,
)
from tests.world.caller import DrafterByHand, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyDraft, ToyLanguage
from tests.world.network import Faults, only

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
LONG = Sampling(max_tokens=1500)


async def report(caller) -> StatusReport:
    caller.send(Status("status"))
    return await caller.until(lambda m: isinstance(m, StatusReport))


async def states(caller) -> dict[str, str]:
    return {drafter.actor_id: drafter.state for drafter in (await report(caller)).drafters}


async def holder(caller) -> str:
    (request,) = (await report(caller)).requests
    return request.drafter


async def soon(question, answer) -> None:
    for _ in range(200):
        if await question() == answer:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{await question()} instead of {answer}")


def test_a_live_request_id_sent_again_and_again_leaves_the_pool_as_it_was():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.05) as cluster:
            caller = await cluster.caller()
            used = []
            for _ in range(12):
                caller.send(Generate("r", PROMPT, sampling=LONG, method="vanilla"))
                await caller.until(lambda m: isinstance(m, Chunk) and m.offset == 0)
                used.append((await report(caller)).target.kv_used)
            return used

    used = run(go())
    assert used == [used[0]] * 12


def test_the_stream_that_took_the_id_over_is_the_only_one_and_is_whole():
    sampling = Sampling(max_tokens=60)

    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.05) as cluster:
            caller = await cluster.caller()
            for _ in range(3):
                caller.send(Generate("r", PROMPT, sampling=sampling, method="vanilla"))
            chunks = (await caller.collect("r"))["r"]
            await asyncio.sleep(1.0)
            assert cluster.target.kv_used == 0 and not cluster.verifier.state.requests
            return chunks

    assert tokens_of(run(go())) == LANGUAGE.continuation(PROMPT, sampling)


def test_a_request_that_found_no_room_at_its_drafter_is_offered_again_when_another_ends():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.05) as cluster:
            cluster.start_drafter("d1", model=ToyDraft(LANGUAGE, rooms=1))
            await cluster.connected("d1")
            caller = await cluster.caller()
            caller.send(Generate("first", PROMPT, sampling=Sampling(max_tokens=100), method="pearl"))
            caller.send(Generate("second", PROMPT, sampling=LONG, method="pearl"))
            return (await caller.collect("first", "second"))["second"]

    chunks = run(go())
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, LONG)
    assert chunks[-1].stats.accepted_tokens > 500


def test_a_drafter_that_declines_is_not_believed_in_and_another_gets_the_request():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.05) as cluster:
            unwilling = DrafterByHand(cluster.network, "unwilling")
            await unwilling.hello(step_us=1.0)  # the fastest, so the first to be asked
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=LONG, method="pearl"))
            opened = await unwilling.until(lambda m: isinstance(m, Open))
            assert await holder(caller) == "unwilling"
            unwilling.send(Decline("r", opened.epoch, lasting=True))
            await soon(lambda: holder(caller), "")
            cluster.start_drafter("willing")
            await soon(lambda: holder(caller), "willing")
            assert await states(caller) == {"unwilling": "standby", "willing": "active"}

    run(go())


def test_a_lease_declined_for_want_of_room_is_offered_again_after_a_while():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.05) as cluster:
            full = DrafterByHand(cluster.network, "full")
            await full.hello()
            beating = asyncio.create_task(full.beat())
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=LONG, method="sps"))
            opened = await full.until(lambda m: isinstance(m, Open))
            full.send(Decline("r", opened.epoch))
            again = await full.until(lambda m: isinstance(m, Open))
            assert again.epoch > opened.epoch and len(again.prefix) > len(opened.prefix)
            beating.cancel()

    run(go())


def test_after_a_swap_the_old_drafter_waits_in_reserve_and_drafts_again_when_the_new_one_dies():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.05) as cluster:
            cluster.start_drafter("a")
            cluster.start_drafter("b")
            await cluster.connected("a", "b")
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=LONG, method="sps"))
            await caller.until(lambda m: isinstance(m, Chunk) and m.offset > 10)
            caller.send(Swap("s", "a", "b"))
            await caller.until(lambda m: isinstance(m, Done))
            assert await holder(caller) == "b" and await states(caller) == {"a": "standby", "b": "active"}
            caller.send(Generate("r2", PROMPT, sampling=Sampling(max_tokens=50), method="sps"))
            second = (await caller.collect("r2"))["r2"]
            await cluster.kill("b")
            await soon(lambda: holder(caller), "a")
            return second

    assert run(go())[-1].stats.drafters == ("b",)


def test_a_drained_drafter_that_has_not_left_is_taken_back_by_a_swap():
    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.05) as cluster:
            staying = DrafterByHand(cluster.network, "staying")
            await staying.hello()
            beating = asyncio.create_task(staying.beat())
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=LONG, method="sps"))
            await staying.until(lambda m: isinstance(m, Open))
            caller.send(DrainActor("d", "staying"))
            await staying.until(lambda m: isinstance(m, Close))
            assert await states(caller) == {"staying": "draining"} and await holder(caller) == ""
            other = DrafterByHand(cluster.network, "other")
            await other.hello()
            await other.until(lambda m: isinstance(m, Open))
            caller.send(Swap("s", "other", "staying"))
            await staying.until(lambda m: isinstance(m, Open))
            assert await holder(caller) == "staying"
            assert await states(caller) == {"staying": "active", "other": "standby"}
            beating.cancel()

    run(go())


def test_a_drain_that_was_lost_is_said_again():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            caller = await cluster.caller()
            await soon(lambda: states(caller), {"d1": "standby"})
            cluster.network.faults, cluster.network.faulty = Faults(drop=1.0), only("Drain")
            caller.send(DrainActor("d", "d1"))
            await caller.until(lambda m: isinstance(m, Done))
            cluster.network.faults = Faults()
            await soon(lambda: states(caller), {})

    run(go())


@pytest.mark.parametrize("method", ["sps", "tree"])
def test_a_drafter_is_lent_a_text_only_while_its_context_holds_it(method):
    sampling = Sampling(max_tokens=200)

    async def go():
        async with Cluster(language=LANGUAGE, forward_s=0.05) as cluster:
            short = DrafterByHand(cluster.network, "short")
            await short.hello(max_context=60)
            beating = asyncio.create_task(short.beat())
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=sampling, method=method))
            opened = await short.until(lambda m: isinstance(m, Open))
            closed = await short.until(lambda m: isinstance(m, Close))
            assert (await caller.collect("r"))["r"][-1].offset == 199
            long_prompt = tuple(range(2, 62))
            caller.send(Generate("r2", long_prompt, sampling=Sampling(max_tokens=20), method=method))
            chunks = (await caller.collect("r2"))["r2"]
            beating.cancel()
            return opened, closed, chunks

    opened, closed, chunks = run(go())
    assert closed.epoch == opened.epoch
    assert chunks[-1].stats.drafters == ()
