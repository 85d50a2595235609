"""Two verifiers as real processes: one is killed in the middle of its streams, which go on at the other."""

import asyncio

from duoactor import AsyncClient
from duoactor.launch.child import own_command

TEXT = {"max_tokens": 300, "ignore_eos": True, "method": "vanilla"}


async def test_streams_go_on_at_the_other_verifier_after_a_kill(tmp_path):
    addresses = [f"ipc://{tmp_path}/{name}.sock" for name in "ab"]
    processes = [
        await asyncio.create_subprocess_exec(*own_command("verifier", "--quiet", f"--bind={at}", "--threads=1"))
        for at in addresses
    ]
    try:
        async with AsyncClient(addresses, timeout=600) as client:
            while len((await client._connected()).verifiers) < 2:
                await asyncio.sleep(0.1)
            whole = (await client.generate("Once upon a time", **TEXT)).token_ids

            async def read(kill: bool) -> tuple[int, ...]:
                got: tuple[int, ...] = ()
                async for chunk in client.stream("Once upon a time", **TEXT):
                    got += chunk.token_ids
                    if kill and len(got) > 40 and processes[0].returncode is None:
                        processes[0].kill()
                        await processes[0].wait()
                return got

            assert await asyncio.gather(read(True), read(False)) == [whole, whole]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
