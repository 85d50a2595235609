"""``duoactor top`` where there is no terminal: one picture of what goes on now."""

import asyncio

import pytest
from rich.console import Console

from actors.replay.clock import run
from duoactor import AsyncClient, ConnectionLost
from duoactor.cli import main
from duoactor.cli.environment import Environment
from duoactor.top.screen import snapshot, whole
from tests.world.caller import ADDRESS
from tests.world.cluster import Cluster


def client_of(cluster, name="watcher", **options) -> AsyncClient:
    return AsyncClient(ADDRESS, network=cluster.network.host(name), **options)


def test_a_snapshot_shows_what_runs_and_every_request():
    async def go():
        async with Cluster(forward_s=0.2) as cluster, client_of(cluster, "asker") as asker:
            cluster.start_drafter("d1")
            await cluster.connected("d1")
            asked = [asyncio.create_task(asker.generate((5, i), max_tokens=300, ignore_eos=True)) for i in range(12)]
            await asyncio.sleep(0.2)
            async with client_of(cluster) as watcher:
                picture = await snapshot(watcher)
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            return picture

    picture = run(go())
    assert len(picture.streams) == 12
    text = [line.plain for line in whole(picture, Console(width=120))]
    assert sum("decode" in line or "prefill" in line or "queued" in line for line in text) == 12
    assert text[-1].strip() and "q quit" not in text[-1]


def test_a_snapshot_without_a_verifier_is_an_error():
    async def go():
        cluster = Cluster()
        client = client_of(cluster)
        with pytest.raises(ConnectionLost, match="no verifier answers"):
            await snapshot(client)
        await client.aclose()

    run(go())


def test_the_command_ends_with_that_sentence(capsys, tmp_path):
    assert main(["top", "--connect", f"ipc://{tmp_path}/none.ipc"], Environment()) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("duoactor: no verifier answers at") and captured.out == ""
