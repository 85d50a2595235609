"""Drafters die, change and lie; clients come, go and send garbage; every other stream is unharmed."""

import asyncio

import pytest

from protocols.messages import (
    Cancel,
    Chunk,
    Done,
    DrainActor,
    FinishReason,
    Generate,
    Goodbye,
    Sampling,
    Status,
    StatusReport,
    Swap,
)
from tests.world.caller import Caller, tokens_of
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()


async def stream_with(event, sampling, method="duodecoding", at=20, drafters=("d1",)):
    """Stream one request; after ``at`` tokens let ``event(cluster, caller)`` happen."""
    async with Cluster(language=LANGUAGE) as cluster:
        for name in drafters:
            cluster.start_drafter(name)
        await cluster.connected(*drafters)
        caller = await cluster.caller()
        caller.send(Generate("r", PROMPT, sampling=sampling, method=method))
        chunks: list[Chunk] = []
        happened = False
        while not chunks or chunks[-1].finish_reason is None:
            message = await caller.next()
            if isinstance(message, Chunk):
                chunks.append(message)
            if not happened and chunks and chunks[-1].offset >= at:
                happened = True
                await event(cluster, caller)
        assert happened
        return chunks, caller


@pytest.mark.parametrize("method", ["sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_killing_the_drafter_in_mid_stream_costs_speed_only(method, temperature):
    sampling = Sampling(temperature=temperature, seed=4, max_tokens=120)

    async def kill(cluster, caller):
        await cluster.kill("d1")

    chunks, _ = run(stream_with(kill, sampling, method))
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)


@pytest.mark.parametrize("method", ["sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree"])
def test_a_stream_goes_on_with_the_other_drafter_when_its_own_is_killed(method):
    sampling = Sampling(max_tokens=200)

    async def kill(cluster, caller):
        holder = next(d.actor_id for d in cluster.verifier.state.drafters.by_peer.values() if d.leases)
        await cluster.kill(holder)

    chunks, _ = run(stream_with(kill, sampling, method, drafters=("d1", "d2")))
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)
    assert set(chunks[-1].stats.drafters) == {"d1", "d2"}


def test_a_drafter_that_is_cut_off_loses_its_lease_by_heartbeat():
    sampling = Sampling(max_tokens=2000)

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            cluster.network.partition("d1")
            for _ in range(100):
                await asyncio.sleep(0.1)
            assert cluster.verifier.state.drafters.named("d1") is None
            cluster.network.heal("d1")
            for _ in range(100):
                await asyncio.sleep(0.1)
            assert cluster.verifier.state.drafters.named("d1") is not None
            caller = await cluster.caller()
            return await caller.generate(PROMPT, sampling, "pearl")

    chunks = run(go())
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)
    assert chunks[-1].stats.accepted_tokens > 100


@pytest.mark.parametrize("method", ["sps", "pearl", "duodecoding", "duodecoding-lockstep", "tree"])
def test_swapping_drafters_in_mid_stream_changes_no_token(method):
    sampling = Sampling(temperature=0.5, seed=2, max_tokens=200)

    async def swap(cluster, caller):
        old = next(d.actor_id for d in cluster.verifier.state.drafters.by_peer.values() if d.leases)
        new = "d2" if old == "d1" else "d1"
        caller.send(Swap("s", old, new))

    chunks, caller = run(stream_with(swap, sampling, method, drafters=("d1", "d2")))
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)
    assert len(chunks[-1].stats.drafters) == 2
    assert any(isinstance(m, Done) and "moved 1 stream " in m.detail for m in caller.seen)


def test_a_drained_drafter_leaves_and_its_stream_goes_on():
    sampling = Sampling(max_tokens=200)

    async def drain(cluster, caller):
        caller.send(DrainActor("x", "d1"))
        await cluster.tasks["d1"]

    chunks, _ = run(stream_with(drain, sampling, drafters=("d1",)))
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)


def test_a_drafter_that_comes_late_is_given_the_streams_that_have_none():
    sampling = Sampling(max_tokens=3000)

    async def join(cluster, caller):
        cluster.start_drafter("late", skill=1.0)
        await cluster.connected("late")

    chunks, _ = run(stream_with(join, sampling, drafters=(), at=20))
    assert tokens_of(chunks) == LANGUAGE.continuation(PROMPT, sampling)
    assert chunks[-1].stats.drafters == ("late",)
    assert chunks[-1].stats.accepted_tokens > 500


def test_many_requests_at_once_stream_what_each_would_stream_alone():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            cluster.start_drafter("d2")
            await cluster.connected("d1", "d2")
            caller = await cluster.caller()
            jobs = {}
            for i in range(12):
                method = ["vanilla", "sps", "pearl", "duodecoding", "tree"][i % 5]
                sampling = Sampling(temperature=0.6 * (i % 2), seed=i, max_tokens=20 + 7 * i)
                jobs[f"r{i}"] = ((i + 2, i + 3, i + 4), sampling)
                caller.send(Generate(f"r{i}", jobs[f"r{i}"][0], sampling=sampling, method=method))
            streams = await caller.collect(*jobs)
            await asyncio.sleep(0.1)
            assert cluster.target.kv_used == 0
            return {rid: tokens_of(c) for rid, c in streams.items()}, jobs

    got, jobs = run(go())
    for rid, (prompt, sampling) in jobs.items():
        assert got[rid] == LANGUAGE.continuation(prompt, sampling)


def test_a_full_pool_queues_requests_instead_of_refusing_them():
    async def go():
        cluster = Cluster(language=LANGUAGE)
        cluster.target.slots = 100
        async with cluster:
            caller = await cluster.caller()
            for i in range(6):
                caller.send(Generate(f"r{i}", PROMPT, sampling=Sampling(max_tokens=40), method="vanilla"))
            return await caller.collect(*(f"r{i}" for i in range(6)))

    streams = run(go())
    assert all(len(tokens_of(c)) == 40 for c in streams.values())


def test_cancelling_frees_the_slots_and_the_lease():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            caller = await cluster.caller()
            caller.send(Generate("r", PROMPT, sampling=Sampling(max_tokens=4000), method="pearl"))
            await caller.until(lambda m: isinstance(m, Chunk) and m.offset > 10)
            caller.send(Cancel("r"))
            while cluster.target.kv_used:
                await asyncio.sleep(0.01)
            await asyncio.sleep(1)
            caller.send(Status("s"))
            report = await caller.until(lambda m: isinstance(m, StatusReport))
            assert report.requests == () and report.drafters[0].leases == 0

    run(go())


def test_a_client_that_vanishes_takes_its_requests_with_it():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            caller = Caller(cluster.network, "ghost")
            await caller.hello()
            caller.send(Generate("r", PROMPT, sampling=Sampling(max_tokens=4000), method="vanilla"))
            await caller.until(lambda m: isinstance(m, Chunk))
            cluster.network.kill("ghost")
            while cluster.target.kv_used:
                await asyncio.sleep(0.01)
            leaver = await cluster.caller()
            leaver.send(Generate("r2", PROMPT, sampling=Sampling(max_tokens=4000), method="vanilla"))
            await leaver.until(lambda m: isinstance(m, Chunk))
            leaver.send(Goodbye())
            while cluster.target.kv_used:
                await asyncio.sleep(0.01)

    run(go())


@pytest.mark.parametrize("cut", [1, 7, 39])
def test_a_stream_resumed_from_its_tokens_so_far_is_the_same_stream(cut):
    sampling = Sampling(temperature=0.8, seed=6, max_tokens=40)
    whole = LANGUAGE.continuation(PROMPT, sampling)

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            caller = await cluster.caller()
            return await caller.generate(PROMPT, sampling, "duodecoding", generated=tuple(whole[:cut]))

    chunks = run(go())
    assert chunks[0].offset == cut
    assert [t for c in chunks for t in c.token_ids] == whole[cut:]


def test_a_stop_string_ends_the_text_before_it():
    sampling = Sampling(max_tokens=60)
    text = "".join(chr(63 + t) for t in LANGUAGE.continuation(PROMPT, sampling))
    stop = text[25:28]

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            caller = await cluster.caller()
            stopping = Sampling(max_tokens=60, stop=(stop,))
            return await caller.generate(PROMPT, stopping, "duodecoding")

    chunks = run(go())
    assert "".join(p for c in chunks for p in c.pieces) == text[: text.index(stop)]
    assert chunks[-1].finish_reason is FinishReason.STOP


def test_an_actor_that_still_waits_for_a_verifier_stops_when_asked():
    async def go():
        for start in ("start_drafter", "start_controller"):
            cluster = Cluster(language=LANGUAGE)
            getattr(cluster, start)()
            await asyncio.sleep(1)
            ((name, stop),) = cluster.stops.items()
            stop.set()
            await asyncio.wait_for(cluster.tasks[name], 1)

    run(go())
