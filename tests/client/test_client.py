"""AsyncClient and Client against the real verifier actor with toy models."""

import asyncio

import pytest

from duoactor import AsyncClient, ChatTurn, ConnectionLost, RequestError, Sampling
from tests.world.caller import ADDRESS
from tests.world.clock import run
from tests.world.cluster import Cluster
from tests.world.models import ToyLanguage
from tests.world.network import MemoryNetwork

PROMPT = (5, 9, 33)
LANGUAGE = ToyLanguage()


def client_of(cluster: Cluster, **options) -> AsyncClient:
    return AsyncClient(ADDRESS, network=cluster.network.host("client"), **options)


def test_it_streams_text_and_ends_with_statistics():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            chunks = [c async for c in client.stream(PROMPT, max_tokens=20, method="vanilla")]
            whole = await client.generate(PROMPT, max_tokens=20)
            return chunks, whole

    chunks, whole = run(go())
    truth = LANGUAGE.continuation(PROMPT, Sampling(max_tokens=20))
    assert [t for c in chunks for t in c.token_ids] == truth == list(whole.token_ids)
    assert "".join(c.text for c in chunks) == whole.text == "".join(chr(63 + t) for t in truth)
    assert whole.stats.completion_tokens == 20 and whole.stats.prompt_tokens == 3


def test_a_prompt_may_be_text_or_ids_or_a_conversation():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            ids = await client.generate([5, 9, 33], max_tokens=8)
            text = await client.generate(chr(68) + chr(72) + chr(96), max_tokens=8)
            turns = [{"role": "user", "content": chr(68) + chr(72)}, ChatTurn("user", chr(96))]
            chat = await client.chat(turns, max_tokens=8)
            return ids.text, text.text, chat.text

    assert len(set(run(go()))) == 1


def test_the_seed_that_was_drawn_gives_the_same_text_again():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            first = await client.generate(PROMPT, temperature=1.0, max_tokens=30)
            again = await client.generate(PROMPT, temperature=1.0, max_tokens=30, seed=first.sampling.seed)
            other = await client.generate(PROMPT, temperature=1.0, max_tokens=30)
            return first, again, other

    first, again, other = run(go())
    assert first.text == again.text != other.text


def test_a_logit_bias_may_be_a_mapping():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            return (await client.generate(PROMPT, max_tokens=2, logit_bias={7: -5})).sampling

    assert run(go()).logit_bias == ((7, -5),)


def test_leaving_the_loop_cancels_the_request():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            async for chunk in client.stream(PROMPT, max_tokens=4000):
                if chunk.offset > 20:
                    break
            while cluster.target.kv_used:
                await asyncio.sleep(0.01)
            return True

    assert run(go())


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "shut down"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_stream_goes_on_by_itself_when_the_verifier_comes_back(crash, temperature):
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=300)

    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            told_to_wait = {} if crash else {"reconnect_timeout": 30.0}
            async with client_of(cluster, **told_to_wait) as client:
                ids: list[int] = []
                restarted = False
                async for chunk in client.stream(PROMPT, sampling=sampling, method="duodecoding"):
                    assert chunk.offset == len(ids)
                    ids += chunk.token_ids
                    if len(ids) > 100 and not restarted:
                        restarted = True
                        if crash:
                            cluster.crash_verifier()
                        else:
                            cluster.stops["verifier"].set()
                        await asyncio.gather(cluster.tasks["verifier"], return_exceptions=True)
                        cluster.target.open_requests.clear()
                        cluster.start_verifier()
                assert restarted
                return ids

    assert run(go()) == LANGUAGE.continuation(PROMPT, sampling)


def test_a_verifier_that_stays_away_is_given_up_after_the_time_allowed():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster:
            client = client_of(cluster, reconnect_timeout=5.0)
            stream = client.stream(PROMPT, max_tokens=4000)
            await stream.__anext__()
            cluster.crash_verifier()
            with pytest.raises(ConnectionLost, match="has not come back within 5 s"):
                async for _ in stream:
                    pass
            await client.aclose()
            cluster.stops.pop("verifier")
            cluster.tasks.pop("verifier")

    run(go())


def test_nobody_at_the_address_is_one_clear_sentence():
    async def go():
        with pytest.raises(
            ConnectionLost, match="no verifier answers at memory://nobody; start one with `duoactor up`"
        ):
            await AsyncClient("memory://nobody", network=MemoryNetwork()).connect()

    run(go())


def test_a_bad_option_is_named_with_those_that_there_are():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            with pytest.raises(RequestError, match=r"temprature.*temperature"):
                await client.generate(PROMPT, temprature=1)
            with pytest.raises(RequestError, match="temperature"):
                await client.generate(PROMPT, temperature=-1.0)
            assert len((await client.generate(PROMPT, max_tokens=3)).token_ids) == 3

    run(go())


def test_swap_and_drain_answer_with_a_sentence():
    async def go():
        async with Cluster(language=LANGUAGE) as cluster, client_of(cluster) as client:
            cluster.start_drafter("a")
            cluster.start_drafter("b")
            await cluster.connected("a", "b")
            assert "moved 0 streams" in await client.swap("a", "b")
            with pytest.raises(
                RequestError, match="no drafter is named c; connected are: a, b; one that has just been"
            ):
                await client.swap("a", "c")
            assert "a is leaving" in await client.drain("a")
            assert {d.actor_id for d in (await client.status()).drafters} <= {"a", "b"}

    run(go())
