"""Whoever listens to a verifier's telemetry hears it wherever the verifier publishes, also once it has restarted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from duoactor import AsyncClient, ConnectionLost
from protocols.messages import Message, RoundStats, Sampling
from tests.world.caller import ADDRESS
from tests.world.clock import run
from tests.world.cluster import Cluster

PROMPT = (5, 9, 33)


class MovingCluster(Cluster):
    """A verifier that publishes elsewhere at every start, as one on tcp may."""

    def start_verifier(self):
        verifier = super().start_verifier()
        verifier.listener.telemetry = verifier.peers.telemetry = f"{ADDRESS}.{verifier.state.incarnation}"
        return verifier

    async def restart(self) -> None:
        self.crash_verifier()
        await asyncio.gather(self.tasks["verifier"], return_exceptions=True)
        self.start_verifier()


def client_of(cluster, **options) -> AsyncClient:
    return AsyncClient(ADDRESS, network=cluster.network.host("client"), **options)


async def hear(client: AsyncClient, telemetry: AsyncIterator[Message], tokens: int) -> None:
    """Until the last round of an answer of so many tokens was heard."""
    answer = asyncio.create_task(client.generate(PROMPT, max_tokens=tokens, method="vanilla"))
    while not (isinstance(message := await anext(telemetry), RoundStats) and message.round == tokens - 1):
        pass
    await answer


def test_a_client_hears_the_rounds_of_a_verifier_that_came_back_elsewhere():
    async def go():
        async with (
            MovingCluster() as cluster,
            client_of(cluster, reconnect_timeout=60) as client,
            aclosing(client.telemetry()) as telemetry,
        ):
            await hear(client, telemetry, 12)
            await cluster.restart()
            await hear(client, telemetry, 20)

    run(go())


def test_a_closed_client_ends_its_telemetry():
    async def go():
        async with Cluster() as cluster:
            client = client_of(cluster)
            telemetry = client.telemetry()
            await hear(client, telemetry, 12)
            await client.aclose()
            with pytest.raises(ConnectionLost):
                await anext(telemetry)

    run(go())


def test_the_controller_hears_a_verifier_that_came_back_elsewhere():
    async def go():
        async with MovingCluster() as cluster:
            controller = cluster.start_controller()
            cluster.start_drafter("d1")
            heard = []
            for _ in range(2):
                await cluster.connected("d1")
                while cluster.verifier.state.controller is None:
                    await asyncio.sleep(0.01)
                controller.control.climbs.clear()
                async with client_of(cluster) as client:
                    await client.generate(PROMPT, sampling=Sampling(max_tokens=40), method="sps")
                await asyncio.sleep(0.5)
                heard.append([kind.method for kind, _ in controller.control.climbs])
                await cluster.restart()
            return heard

    assert run(go()) == [["sps"], ["sps"]]
