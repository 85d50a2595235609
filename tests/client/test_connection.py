"""AsyncClient's connection: nobody there, late, lost, unreadable."""

import asyncio
import contextlib
import logging

import msgspec
import pytest

from duoactor import AsyncClient, ConnectionLost, RefusedError, RequestError, Sampling
from duoactor.client.session import Session
from protocols import wire
from protocols.messages import Detokenize, Done, Refuse, RefuseCode, Swap, Tokenize, Tokenized
from tests.world.caller import ADDRESS
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage
from tests.world.network import MemoryNetwork
from tests.world.puppet import Puppet, client_of, settled

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()
TRUTH = LANGUAGE.continuation(PROMPT, Sampling(max_tokens=300))


def test_a_call_after_a_failed_connect_tries_again_and_raises_again():
    async def go():
        network = MemoryNetwork()
        client = AsyncClient(ADDRESS, network=network)
        for call in (client.connect, client.status, lambda: client.generate(PROMPT)):
            with pytest.raises(ConnectionLost, match="no verifier answers at memory://verifier; start one"):
                await call()
        async with Cluster(network, LANGUAGE):
            answer = await client.generate(PROMPT, max_tokens=20)
            await client.aclose()
        return list(answer.token_ids)

    assert run(go()) == TRUTH[:20]


def test_chunks_have_nobody_look_through_the_open_calls(monkeypatch):
    looks, due = [], Session.due

    def counted(session, *address):
        looks.append(address)
        return due(session, *address)

    async def go():
        async with Cluster() as cluster, client_of(cluster) as client:
            await client.connect()
            monkeypatch.setattr(Session, "due", counted)
            chunks = [chunk async for chunk in client.stream(PROMPT, max_tokens=40, method="vanilla")]
        return len(chunks), len(looks)

    assert run(go()) == (40, 1)


def test_an_address_where_nobody_listens_is_known_at_once_unless_a_timeout_was_given():
    async def go():
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionLost):
            await AsyncClient(ADDRESS, network=MemoryNetwork()).connect()
        at_once = loop.time()
        with pytest.raises(ConnectionLost):
            await AsyncClient(ADDRESS, network=MemoryNetwork(), timeout=7.0).connect()
        return at_once, loop.time()

    assert run(go()) == (pytest.approx(0.0, abs=0.01), pytest.approx(7.0, abs=0.01))


def test_a_verifier_that_is_there_but_still_loading_is_waited_for():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        puppet.welcomes = False
        client = AsyncClient(ADDRESS, network=network)
        connecting = asyncio.create_task(client.connect())
        await asyncio.sleep(5.0)
        assert not connecting.done()
        puppet.welcomes = True
        await connecting
        await client.aclose()
        puppet.task.cancel()

    run(go())


def test_a_verifier_that_never_answers_is_given_up_in_time():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        puppet.welcomes = False
        with pytest.raises(ConnectionLost, match="while it loads its model, give a longer timeout"):
            await AsyncClient(ADDRESS, network=network).connect()
        puppet.task.cancel()
        return asyncio.get_running_loop().time()

    assert run(go()) == pytest.approx(10.0)


def test_calls_that_begin_together_share_one_connection():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            client = client_of(cluster)
            await asyncio.gather(*(client.status() for _ in range(5)), client.generate(PROMPT, max_tokens=5))
            assert len(cluster.network.links) == 1
            await client.aclose()
            assert cluster.network.links == []

    run(go())


def test_a_refused_client_says_why_each_time_it_is_asked():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        puppet.welcomes = False
        client = AsyncClient(ADDRESS, network=network)
        for _ in range(2):
            asking = asyncio.create_task(client.status())
            await settled(lambda: puppet.heard)
            puppet.say(Refuse(RefuseCode.VERSION, "protocol 9"))
            with pytest.raises(RefusedError, match="protocol 9"):
                await asking
            puppet.heard.clear()
        puppet.task.cancel()

    run(go())


def test_a_closed_client_says_so():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            client = client_of(cluster)
            stream = client.stream(PROMPT, max_tokens=4000)
            await stream.__anext__()
            waiting = asyncio.create_task(stream.completion())
            await asyncio.sleep(0)
            await client.aclose()
            with pytest.raises(ConnectionLost, match="closed"):
                await waiting
            with pytest.raises(ConnectionLost, match="the client was closed; make a new one"):
                await client.status()
            await client.aclose()

    run(go())


def test_who_waits_for_the_first_connection_is_told_that_the_client_was_closed():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        puppet.welcomes = False
        client = AsyncClient(ADDRESS, network=network)
        waiting = [asyncio.create_task(client.connect()), asyncio.create_task(client.status())]
        await settled(lambda: puppet.heard)
        await client.aclose()
        for one in waiting:
            with pytest.raises(ConnectionLost, match="the client was closed"):
                await one
        assert network.links == []
        puppet.task.cancel()

    run(go())


def test_a_call_that_is_cancelled_while_it_connects_leaves_the_others_waiting():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        puppet.welcomes = False
        client = AsyncClient(ADDRESS, network=network)
        first, second = asyncio.create_task(client.connect()), asyncio.create_task(client.connect())
        await settled(lambda: puppet.heard)
        first.cancel()
        puppet.welcomes = True
        await second
        assert first.cancelled() and len(network.links) == 1
        await client.aclose()
        puppet.task.cancel()

    run(go())


def test_a_connection_that_nobody_waits_for_any_more_is_closed():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        puppet.welcomes = False
        client = AsyncClient(ADDRESS, network=network, timeout=60.0)
        calls = [asyncio.create_task(call()) for call in (client.connect, client.status)]
        for call, links in zip(calls, (1, 0), strict=True):
            await asyncio.sleep(20.0)
            call.cancel()
            await asyncio.sleep(11.0)
            assert len(network.links) == links
        puppet.welcomes = True
        await client.connect()
        assert len(network.links) == 1
        await client.aclose()
        puppet.task.cancel()

    run(go())


def test_short_looks_at_a_verifier_that_takes_longer_to_answer_find_it_in_the_end():
    class SlowPuppet(Puppet):
        """As one whose rounds take seconds."""

        def say(self, message):
            loop = asyncio.get_running_loop()
            loop.call_later(3.0, self.listener.send, self.peer, wire.encode(message))

    async def go():
        network = MemoryNetwork()
        puppet = SlowPuppet(network)
        client = AsyncClient(ADDRESS, network=network)
        looks = 0
        while (looks := looks + 1) < 9:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.9):
                    await client.connect()
                    break
        assert looks == 4 and len(network.links) == 1
        await client.aclose()
        puppet.task.cancel()

    run(go())


def test_a_client_that_is_closed_as_it_begins_to_connect_leaves_nothing_open():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        client = AsyncClient(ADDRESS, network=network)
        connecting, closing = asyncio.create_task(client.connect()), asyncio.create_task(client.aclose())
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await connecting
        await closing
        assert network.links == [] and asyncio.get_running_loop().time() < 0.01
        puppet.task.cancel()

    run(go())


def swaps_of(puppet: Puppet) -> list[Swap]:
    return [message for message in puppet.heard if isinstance(message, Swap)]


def test_a_head_that_takes_long_to_load_is_waited_for_and_a_verifier_that_is_lost_meanwhile_is_not():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        async with AsyncClient(ADDRESS, network=network) as client:
            asking = asyncio.create_task(client.swap("head", "org/head"))
            await settled(lambda: swaps_of(puppet))
            await asyncio.sleep(120.0)
            puppet.say(Done(swaps_of(puppet)[0].rid, "drafts with org/head"))
            assert await asking == "drafts with org/head"
            with pytest.raises(ConnectionLost, match="does not answer"):
                await client.swap("d1", "d2")
            asking = asyncio.create_task(client.swap("head", ""))
            await asyncio.sleep(1.0)
            puppet.task.cancel()
            puppet.listener.close()
            with pytest.raises(ConnectionLost, match="has not come back"):
                await asking

    run(go())


def questions_of(puppet: Puppet) -> list[Tokenize | Detokenize]:
    return [message for message in puppet.heard if isinstance(message, Tokenize | Detokenize)]


def test_the_tokens_of_a_long_text_are_waited_for_while_the_verifier_lives():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        async with AsyncClient(ADDRESS, network=network) as client:
            for asking in (client.tokenize("a " * 1000), client.detokenize((5,) * 1000)):
                task = asyncio.create_task(asking)
                await settled(lambda: questions_of(puppet))
                await asyncio.sleep(120.0)
                puppet.say(Tokenized(questions_of(puppet)[0].rid, (5,), ("a",), "a"))
                assert (await task).token_ids == (5,)
                puppet.heard.clear()
            with pytest.raises(ConnectionLost, match="does not answer"):
                await client.status()

    run(go())


# --- what cannot be read, or sent ------------------------------------------------------------------------------------


def test_what_the_client_cannot_read_is_counted_and_dropped():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            ids = []
            async for chunk in client.stream(PROMPT, max_tokens=50):
                ids += chunk.token_ids
                ((peer, _),) = cluster.verifier.state.clients.items()
                for garbage in ([b"duoactor/1", b"\xc1"], [b"", b""], [b"duoactor/99", b"x"], [b"duoactor/1"]):
                    cluster.verifier.listener.send(peer, garbage)
            return ids

    assert run(go()) == TRUTH[:50]


def test_a_verifier_of_another_version_is_named_as_such():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        puppet.welcomes = False
        connecting = asyncio.create_task(AsyncClient(ADDRESS, network=network).connect())
        await settled(lambda: puppet.heard)
        puppet.listener.send(puppet.peer, [b"duoactor/99", msgspec.msgpack.encode(["Refuse", "version", "no"])])
        with pytest.raises(Exception, match="speaks protocol version 99"):
            await connecting
        puppet.task.cancel()

    run(go())


def test_a_request_that_the_verifier_could_not_read_fails_and_the_next_one_works():
    async def go():
        network = MemoryNetwork()
        puppet = Puppet(network)
        async with AsyncClient(ADDRESS, network=network) as client:
            asking = asyncio.create_task(client.generate(PROMPT))
            await settled(puppet.requests)
            puppet.say(Refuse(RefuseCode.MALFORMED, "the body cannot be decoded"))
            with pytest.raises(RequestError, match="the body cannot be decoded"):
                await asking
            asking = asyncio.create_task(client.swap("a", "b"))
            await settled(lambda: len(puppet.heard) > 2)
            puppet.say(Refuse(RefuseCode.MALFORMED, "again"))
            with pytest.raises(RequestError, match="again"):
                await asking
        puppet.task.cancel()

    run(go())


@pytest.mark.parametrize("away_s", [5.0, 12.0])
def test_who_waits_for_a_lost_verifier_is_told_once_and_of_a_busy_one_nothing(away_s, caplog):
    """A client takes a verifier that was silent for three seconds for lost; a busy one then answers at once."""

    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            stream = client.stream(PROMPT, max_tokens=300)
            ids = list((await stream.__anext__()).token_ids)
            cluster.crash_verifier()
            reading = asyncio.create_task(stream.completion())
            await asyncio.sleep(away_s)
            cluster.target.open_requests.clear()
            cluster.start_verifier()
            return [*ids, *(await reading).token_ids]

    with caplog.at_level(logging.WARNING):
        assert run(go()) == TRUTH
    said = [
        "waiting for the verifier at memory://verifier to come back",
        "the verifier at memory://verifier is back",
    ]
    assert [record.message for record in caplog.records if record.name == "duoactor.client"] == said * (away_s > 6.0)


def test_a_client_may_be_used_in_one_loop_after_another():
    network = MemoryNetwork()
    client = AsyncClient(ADDRESS, network=network)

    async def go():
        async with Cluster(network, LANGUAGE):
            return list((await client.generate(PROMPT, max_tokens=5)).token_ids)

    assert run(go()) == run(go()) == TRUTH[:5]


def test_a_client_of_another_loop_says_so():
    async def elsewhere(client):
        with pytest.raises(ConnectionLost, match="connected in another event loop; make one client for each loop"):
            await client.status()

    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            await asyncio.to_thread(asyncio.run, elsewhere(client))
            assert (await client.status()).target.model_id == "toy"

    asyncio.run(go())
