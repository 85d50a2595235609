"""A monitor that reads from a real verifier, which goes and comes back."""

import asyncio

from actors.replay.clock import run
from duoactor import AsyncClient
from duoactor.monitor.monitor import Monitor
from duoactor.monitor.reader import Reader
from tests.world.caller import ADDRESS
from tests.world.cluster import Cluster


def test_a_monitor_follows_a_verifier_through_its_absence():
    async def go():
        loop = asyncio.get_running_loop()
        cluster = Cluster(forward_s=0.01)
        client = AsyncClient(ADDRESS, network=cluster.network.host("watcher"))
        monitor = Monitor(ADDRESS)
        reading = asyncio.create_task(Reader(client, monitor, loop.time).run())

        async def seen(wanted):
            while not wanted(picture := monitor.picture(loop.time())):
                await asyncio.sleep(0.05)
            return picture

        absent = await seen(lambda picture: picture.problem)
        async with cluster, AsyncClient(ADDRESS, network=cluster.network.host("asker"), reconnect_timeout=60) as asker:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            answer = asyncio.create_task(asker.generate((5, 9), max_tokens=900, method="sps", ignore_eos=True))
            decoding = await seen(lambda picture: picture.strip)
            cluster.crash_verifier()
            lost = await seen(lambda picture: picture.silent_s is not None)
            cluster.start_verifier()
            back = await seen(lambda picture: picture.silent_s is None and picture.strip and picture.streams)
            await answer
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await client.aclose()
        return absent, decoding, lost, back

    absent, decoding, lost, back = run(go())
    assert "no verifier" in absent.problem and absent.actors == ()
    assert [actor.role for actor in decoding.actors] == ["verifier", "drafter"]
    assert decoding.streams[0].tokens_per_second > 0 and decoding.strip.draft.keys() == {"d1"}
    assert lost.model_id == "toy" and lost.problem
    assert back.streams[0].tokens > decoding.streams[0].tokens
