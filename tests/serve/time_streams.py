"""CPU time of gateway and verifier: by chunks of 1 to 64 streams, and with up to a hundred who watch.

By hand: ``python -m tests.serve.time_streams``. Real processes and sockets before a toy target whose rounds take 20 ms;
every round sends each stream a chunk of one token. ``--watchers 0 1 100`` counts watchers in place of streams, and
``--profile`` prints where the gateway's time goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import multiprocessing
import pstats
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from actors.process import run_actor
from duoactor import AsyncClient
from duoactor.serve.settings import GatewaySettings
from duoactor.serve.start import run_gateway
from protocols.zeromq import ZmqNetwork
from tests.world.cluster import Cluster
from tests.world.models import ToyTarget
from tests.world.processes import free_port

ROUND_S = 0.02
WARM_S, TIMED_S = 1.0, 4.0


def verify(address: str) -> None:
    async def main(stop: asyncio.Event) -> None:
        target = ToyTarget(slots=1 << 18)
        async with Cluster(ZmqNetwork(), target=target, forward_s=ROUND_S, address=address):
            await stop.wait()

    run_actor(main)


def serve(address: str, port: int, profile: str) -> None:
    settings = GatewaySettings(connect=(address,), http=str(port))
    if not profile:
        run_gateway(settings)
        return
    profiler = cProfile.Profile()
    profiler.runcall(run_gateway, settings)
    profiler.dump_stats(profile)


def spent_s(pid: int | None) -> float:
    """CPU time of a process and all of its threads."""
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


class Reader:
    """A chat that is streamed over HTTP."""

    chunks = 0

    async def read(self, port: int, tokens: int = 4000) -> None:
        text = "Tell a story."
        asked = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": tokens}
        body = msgspec.json.encode({**asked, "ignore_eos": True, "method": "vanilla", "priority": 0})
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost:{port}\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        try:
            while data := await reader.read(1 << 16):
                self.chunks += data.count(b"data: ")
        finally:
            writer.close()


async def top(address: str) -> None:
    async with AsyncClient(address, timeout=60) as client:
        while True:
            await client.status()
            await asyncio.sleep(0.5)


async def listen(address: str) -> None:
    async with AsyncClient(address, timeout=60) as client:
        async for _ in client.telemetry():
            pass


async def page(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        writer.write(f"GET /live/state HTTP/1.1\r\nhost: localhost:{port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
        await asyncio.sleep(1.0)


async def measured(
    port: int, pids: Sequence[int | None], streams: int, watch: Sequence[Awaitable[None]] = ()
) -> tuple[float, list[float]]:
    """Chunks a second, and each process's CPU time in ms a second."""
    readers = [Reader() for _ in range(streams)]
    tasks = [asyncio.ensure_future(work) for work in (*(one.read(port) for one in readers), *watch)]
    while any(one.chunks < 3 for one in readers):
        await asyncio.sleep(0.1)
    await asyncio.sleep(WARM_S)
    began, before, chunks = time.monotonic(), [spent_s(pid) for pid in pids], sum(one.chunks for one in readers)
    await asyncio.sleep(TIMED_S)
    took = time.monotonic() - began
    spent = [1000 * (spent_s(pid) - was) / took for pid, was in zip(pids, before, strict=True)]
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    found = (sum(one.chunks for one in readers) - chunks) / took, spent
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0.5)
    return found


async def until_open(port: int) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.1)


async def table(options: argparse.Namespace, address: str, port: int, pids: Sequence[int | None]) -> None:
    async with AsyncClient(address, timeout=60) as client:
        await client.status()
    await until_open(port)
    if not options.watchers:
        print("| streams | chunks a second | gateway, µs a chunk | verifier, µs a chunk |\n|---|---|---|---|")
        for streams in options.streams:
            rate, spent = await measured(port, pids, streams)
            print(f"| {streams} | {rate:.0f} |", " | ".join(f"{1000 * ms / rate:.0f}" for ms in spent), "|", flush=True)
        return
    print("| watchers | verifier, ms a second | gateway, ms a second |\n|---|---|---|")
    kinds: dict[str, Callable[[], Awaitable[None]]] = {
        "`top`": lambda: top(address),
        "telemetry": lambda: listen(address),
        "pages": lambda: page(port),
    }
    for kind, watcher in kinds.items():
        for count in options.watchers:
            _, (gateway, verifier) = await measured(port, pids, 1, [watcher() for _ in range(count)])
            print(f"| {count} {kind} | {verifier:.0f} | {gateway:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--watchers", type=int, nargs="*", default=[])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    start = multiprocessing.get_context("spawn").Process
    with tempfile.TemporaryDirectory() as folder:
        address, port = f"ipc://{folder}/v.ipc", free_port()
        profile = f"{folder}/profile" if options.profile else ""
        actors = [start(target=serve, args=(address, port, profile)), start(target=verify, args=(address,))]
        for actor in actors:
            actor.start()
        try:
            asyncio.run(table(options, address, port, [actor.pid for actor in actors]))
        finally:
            for actor in actors:
                actor.terminate()
                actor.join()
        if profile:
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
