"""A process with a Python client that asks its verifier for everything, until stdin ends; then it asks for one text and
prints its tokens: ``python hostile_client.py ADDRESS '{"prompt": …}'``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys

from duoactor import AsyncClient, DuoactorError

PATIENCE_S = 0.5  # a hostile verifier may owe an answer for ever
AT_ONCE = 4


async def pester(client: AsyncClient, over: asyncio.Event, chance: random.Random) -> None:
    calls = (
        client.status,
        lambda: client.tokenize("Once"),
        lambda: client.detokenize([5, 9, 33]),
        lambda: client.generate([5, 9, 33], max_tokens=60),
        lambda: client.swap("d1", "d2"),
    )
    while not over.is_set():
        with contextlib.suppress(TimeoutError, DuoactorError):
            async with asyncio.timeout(PATIENCE_S):
                await chance.choice(calls)()
        await asyncio.sleep(0.001)  # also where every call is an error at once


async def main(address: str, wanted: dict[str, object]) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, over.set)
    async with contextlib.AsyncExitStack() as stack:
        client = AsyncClient(address, timeout=5.0, reconnect_timeout=5.0)
        stack.push_async_callback(client.aclose)
        await asyncio.gather(*(pester(client, over, random.Random(i)) for i in range(AT_ONCE)))
    async with AsyncClient(address, timeout=120.0) as client:
        print(json.dumps((await client.generate(**wanted)).token_ids), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
