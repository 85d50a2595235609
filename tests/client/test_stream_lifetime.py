"""AsyncClient's streams: no room to send, nobody reads, cancelled, closed."""

import asyncio
import gc

import pytest

from duoactor import AsyncClient, ConnectionLost, RequestError, Sampling
from duoactor.client.connection import MOST_UNREAD
from protocols.messages import Cancel, Chunk, Failed, FailureCode, FinishReason
from tests.world.caller import ADDRESS
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage
from tests.world.network import MemoryNetwork
from tests.world.puppet import Puppet, client_of, settled

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
TRUTH = LANGUAGE.continuation(PROMPT, Sampling(max_tokens=300))


def test_a_request_that_cannot_be_queued_is_sent_when_there_is_room():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        async with AsyncClient(ADDRESS, network=network) as client:
            puppet.listener.inbox.capacity = 0
            asking = asyncio.create_task(client.generate(PROMPT))
            await asyncio.sleep(2.0)
            assert not puppet.requests() and not asking.done()
            puppet.listener.inbox.capacity = 100
            await settled(puppet.requests)
            assert len(puppet.requests()) == 1
            asking.cancel()
        puppet.task.cancel()

    run(go())


def test_a_chunk_that_cannot_be_queued_does_not_end_the_stream():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            ids = []
            async for chunk in client.stream(PROMPT, max_tokens=300):
                assert chunk.offset == len(ids)
                ids += chunk.token_ids
                (link,) = cluster.network.links
                link.inbox.capacity = 0 if len(ids) == 50 else 100
                if len(ids) == 50:
                    asyncio.get_running_loop().call_later(1.0, setattr, link.inbox, "capacity", 100)
            assert (
                cluster.verifier.state.counters["unknown_peer"] >= 1
            )  # it was forgotten, and asked until it was heard
            return ids

    assert run(go()) == TRUTH


# --- a lost verifier -------------------------------------------------------------------------------------------------


def test_a_verifier_that_was_shut_down_in_order_ends_streams_at_once_with_what_they_got():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            client = client_of(cluster)
            stream = client.stream(PROMPT, max_tokens=4000)
            got = len((await stream.__anext__()).token_ids)
            cluster.stops["verifier"].set()
            begin = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionLost, match=r"the verifier was shut down; (\d+) tokens were received") as lost:
                while True:
                    got += len((await stream.__anext__()).token_ids)
            assert f" {got} tokens" in str(lost.value)
            assert asyncio.get_running_loop().time() - begin < 0.5
            with pytest.raises(ConnectionLost, match="no verifier answers"):
                await client.status()
            await client.aclose()

    run(go())


# --- streams that nobody reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["dropped", "closed", "left"])
def test_a_stream_that_is_done_with_is_cancelled_at_once(how):
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        async with AsyncClient(ADDRESS, network=network) as client:
            stream = client.stream(PROMPT)
            reading = asyncio.create_task(stream.__anext__())
            await settled(puppet.requests)
            (request,) = puppet.requests()
            if how == "left":
                async with stream:
                    pass
            elif how == "closed":
                await stream.aclose()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            del stream, reading
            gc.collect()
            begin = asyncio.get_running_loop().time()
            await settled(lambda: Cancel(request.rid) in puppet.heard)
            assert asyncio.get_running_loop().time() - begin < 0.1
        puppet.task.cancel()

    run(go())


def test_a_stream_that_nobody_reads_gives_way_and_goes_on_with_the_same_text_once_it_is_read():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            stream = client.stream(PROMPT, max_tokens=300)
            chunks = [await anext(stream)]
            for _ in range(2):  # it is paused as often as need be
                await settled(lambda: not cluster.verifier.state.requests)
                await asyncio.sleep(60)
                generated = cluster.verifier.state.counters["generation_tokens"]
                assert len(chunks) < generated < 300 and not cluster.verifier.state.requests
                before = len(chunks)
                while len(chunks) < before + MOST_UNREAD:
                    chunks.append(await anext(stream))
                await asyncio.sleep(1)
            chunks += [chunk async for chunk in stream]
            return [token for chunk in chunks for token in chunk.token_ids], chunks[-1].stats

    ids, stats = run(go())
    assert ids == TRUTH
    assert stats.cached_tokens <= stats.prompt_tokens == len(PROMPT)


def test_a_stream_that_finds_no_room_after_its_pause_waits_for_it():
    async def go():
        async with Cluster(language=LANGUAGE, max_queued_requests=1) as cluster, client_of(cluster) as client:
            stream = client.stream(PROMPT, max_tokens=300)
            chunks = [await anext(stream)]
            await settled(lambda: not cluster.verifier.state.requests)
            cluster.verifier.admission._preparing += 1  # the queue is full
            while len(chunks) < 1 + MOST_UNREAD:
                chunks.append(await anext(stream))
            await asyncio.sleep(60)
            assert cluster.verifier.state.counters["bad_requests"] > 1
            cluster.verifier.admission._preparing -= 1
            chunks += [chunk async for chunk in stream]
            return [token for chunk in chunks for token in chunk.token_ids]

    assert run(go()) == TRUTH


def test_a_stream_that_is_not_read_before_its_deadline_ends_with_that_sentence():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            stream = client.stream(PROMPT, max_tokens=300, deadline_ms=5000)
            await anext(stream)
            await asyncio.sleep(60)
            with pytest.raises(RequestError, match="the answer was not read before its deadline"):
                async for _ in stream:
                    pass

    run(go())


def test_closing_a_stream_ends_whoever_reads_it():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        async with AsyncClient(ADDRESS, network=network) as client:
            stream = client.stream(PROMPT)
            reading = asyncio.create_task(stream.completion())
            await settled(puppet.requests)
            await stream.aclose()
            with pytest.raises(RequestError, match="closed before its end"):
                await reading
            assert [chunk async for chunk in stream] == []
        puppet.task.cancel()

    run(go())


@pytest.mark.parametrize("how", ["the end", "an error"])
def test_several_tasks_may_read_one_stream_and_all_of_them_end_with_it(how):
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        async with AsyncClient(ADDRESS, network=network) as client:
            stream = client.stream(PROMPT, max_tokens=2)
            reading = [asyncio.create_task(stream.completion()) for _ in range(3)]
            await settled(puppet.requests)
            (request,) = puppet.requests()
            puppet.say(Chunk(request.rid, 0, (5,), ("a",), (False,)))
            await asyncio.sleep(1.0)
            last = Chunk(request.rid, 1, (9,), ("b",), (False,), FinishReason.LENGTH)
            puppet.say(last if how == "the end" else Failed(request.rid, FailureCode.INTERNAL, "it broke"))
            async with asyncio.timeout(5.0):
                found = await asyncio.gather(*reading, return_exceptions=True)
        puppet.task.cancel()
        return [str(one) for one in found]

    found = run(go())
    closed = [one for one in found if "closed before its end" in one]
    assert len(found) == 3 and len(closed) == 2
    assert sum("it broke" in one for one in found) == (how == "an error")


def test_a_client_that_is_dropped_leaves_once_its_streams_are_read():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            client = client_of(cluster)
            stream = client.stream(PROMPT, max_tokens=30)
            ids = list((await anext(stream)).token_ids)
            del client
            gc.collect()
            ids += [token async for chunk in stream for token in chunk.token_ids]
            assert ids == TRUTH[:30] and len(cluster.verifier.state.clients) == 1
            del stream
            gc.collect()
            await settled(lambda: not cluster.verifier.state.clients)
            assert all(link.closed for link in cluster.network.links)

    run(go())


# --- event loops -----------------------------------------------------------------------------------------------------
