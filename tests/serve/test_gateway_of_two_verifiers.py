"""A gateway before two verifiers: one is lost, or both are replaced one after the other, and no caller notices."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from openai import AsyncOpenAI

from tests.serve.gateway import LANGUAGE, TURNS, Served, served
from tests.world.cluster import Cluster
from tests.world.models import ToyTarget
from tests.world.network import MemoryNetwork

LONG = {"model": "toy", "messages": TURNS, "max_tokens": 60, "temperature": 0}
STREAMS = 4
ENOUGH = 15  # characters, a token each, of a stream that is well under way


@asynccontextmanager
async def before_two(**settings) -> AsyncIterator[tuple[Served, list[Cluster]]]:
    network = MemoryNetwork()
    both = [
        Cluster(
            network,
            LANGUAGE,
            forward_s=0.002,
            target=ToyTarget(LANGUAGE, slots=1 << 14),
            address=f"memory://{name}",
            **settings,
        )
        for name in "ab"
    ]
    async with both[1], served(both[0], beside=both[1:]) as gateway:
        await known(gateway, 2)
        yield gateway, both


async def known(gateway: Served, count: int) -> None:
    """Until the gateway knows so many verifiers."""
    while len((await gateway.gateway.client._connected()).verifiers) != count:
        await asyncio.sleep(0.001)


def busy(cluster: Cluster) -> int:
    assert cluster.verifier is not None
    return len(cluster.verifier.state.requests)


class Reader:
    """Asks for the same answer as often as it is told to; ``read``: of the present one's text, so many characters."""

    def __init__(self, client: AsyncOpenAI, **options) -> None:
        self.client, self.options = client, options
        self.read = 0

    async def ask(self) -> str:
        text, self.read = "", 0
        asked = {**LONG, "extra_body": {"ignore_eos": True}, **self.options}
        async for chunk in await self.client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                self.read = len(text)
        return text


async def under_way(cluster: Cluster, readers: list[Reader]) -> None:
    """Until the verifier serves some of the readers, all of which have read something."""
    while not (busy(cluster) > 1 and all(reader.read > ENOUGH for reader in readers)):
        await asyncio.sleep(0.001)


async def test_streams_go_on_at_the_other_verifier_when_theirs_is_killed():
    async with before_two() as (gateway, (first, second)), gateway.openai() as client:
        truth = await Reader(client).ask()
        readers = [Reader(client) for _ in range(STREAMS)]
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(reader.ask()) for reader in readers]
            await under_way(first, readers)
            spread = busy(first), busy(second)
            assert first.verifier is not None
            first.crash_verifier()
            first.verifier.listener.close()
        assert [answer.result() for answer in answers] == [truth] * STREAMS
        assert len(truth) == LONG["max_tokens"]
        assert spread == (STREAMS / 2, STREAMS / 2)
        assert (await gateway.request("GET", "/health")).status_code == 200


@pytest.mark.parametrize("shutdown_timeout", [0.0, 60.0], ids=["streams move", "streams end first"])
async def test_a_rolling_restart_loses_nothing(shutdown_timeout):
    async with before_two(shutdown_timeout=shutdown_timeout) as (gateway, both), gateway.openai() as client:
        truth = await Reader(client).ask()
        # the last with logprobs: for the text of tokens the gateway asks a verifier in the middle of the answer
        readers = [Reader(client) for _ in range(STREAMS)] + [Reader(client, logprobs=True, top_logprobs=3)]
        over, answers = asyncio.Event(), []

        async def keep_asking(reader: Reader) -> None:
            while not over.is_set():
                answers.append(await reader.ask())

        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(keep_asking(reader))
            for cluster in both:
                await under_way(cluster, readers)
                cluster.stops["verifier"].set()
                await cluster.tasks["verifier"]
                await known(gateway, 1)
                cluster.start_verifier()
                await known(gateway, 2)
            over.set()
        assert set(answers) == {truth} and len(truth) == LONG["max_tokens"]
