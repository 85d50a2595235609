"""Two verifiers as real processes: one is killed, and the other replaced in order, in the middle of their streams."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from openai import AsyncOpenAI

from duoactor import AsyncClient
from duoactor.launch.child import own_command
from tests.world.processes import free_port

pytestmark = pytest.mark.processes
PROMPT = "Once upon a time"
TEXT = {"max_tokens": 200, "ignore_eos": True, "method": "vanilla"}
ENOUGH = 60  # characters of a stream that is well under way
LOOK_S = 0.1  # processes tell nobody


@asynccontextmanager
async def started(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*own_command(*words, "--quiet"))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def known(client: AsyncClient) -> None:
    """Until the client knows both."""
    while len((await client._connected()).verifiers) < 2:
        await asyncio.sleep(LOOK_S)


async def healthy(http: str) -> None:
    async with httpx2.AsyncClient() as client:
        while True:
            with contextlib.suppress(httpx2.TransportError):
                if (await client.get(f"http://{http}/health")).status_code == 200:
                    return
            await asyncio.sleep(LOOK_S)


class Reader:
    """``text``: what it has read so far."""

    text = ""

    async def from_client(self, client: AsyncClient) -> None:
        async for chunk in client.stream(PROMPT, **TEXT):
            self.text += chunk.text

    async def from_gateway(self, client: AsyncOpenAI) -> None:
        asked = {"model": "bundled", "prompt": PROMPT, "max_tokens": TEXT["max_tokens"], "temperature": 0}
        extra = {"ignore_eos": True, "method": "vanilla"}
        async for chunk in await client.completions.create(**asked, stream=True, extra_body=extra):
            self.text += "".join(choice.text for choice in chunk.choices)


async def test_streams_of_a_client_and_of_a_gateway_go_on_at_the_other_verifier_when_theirs_is_killed_or_replaced(
    tmp_path,
):
    http = f"127.0.0.1:{free_port()}"
    addresses = [f"ipc://{tmp_path}/{name}.sock" for name in "ab"]
    verifiers = [("verifier", f"--bind={at}", "--threads=1", "--inline-draft=none") for at in addresses]
    async with (
        started(*verifiers[0]) as first,
        started(*verifiers[1]) as second,
        started("serve", f"--http={http}", *(f"--connect={at}" for at in addresses)),
        AsyncClient(addresses, timeout=600) as own,
        AsyncOpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0) as stock,
    ):
        await known(own)
        await healthy(http)
        truth = (await own.generate(PROMPT, **TEXT)).text

        async def ends(verifier: asyncio.subprocess.Process, how: int) -> list[str]:
            """In the middle of streams: their texts."""
            readers = [Reader() for _ in range(4)]
            async with asyncio.TaskGroup() as group:
                for reader in readers[:2]:
                    group.create_task(reader.from_client(own))
                for reader in readers[2:]:
                    group.create_task(reader.from_gateway(stock))
                while not all(len(reader.text) > ENOUGH for reader in readers):
                    await asyncio.sleep(LOOK_S)
                verifier.send_signal(how)
                await verifier.wait()
            return [reader.text for reader in readers]

        assert await ends(first, signal.SIGKILL) == [truth] * 4
        async with started(*verifiers[0]):
            await known(own)
            assert await ends(second, signal.SIGTERM) == [truth] * 4
