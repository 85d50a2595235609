"""What peers that send as fast as they can cost a stream of method auto: ``python -m tests.system.flood``.

The verifier has one CPU and a flood the other. The flood sends in every second window of a few seconds; a window's
figure is tokens per second that the verifier's main thread has had its CPU, so that others who use it meanwhile do not
matter much. Printed is the median ratio of a window with the flood to the quiet one before it. All that is waited for
has a limit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from actors.peer import introduction
from duoactor import AsyncClient
from protocols import wire
from protocols.messages import Grow, Heartbeat, Hello, Message, Refuse, Role, Status, ToClient, ToDrafter, Welcome
from protocols.security import KeyPair, KeyRole, load_security
from protocols.transport import Link
from protocols.zeromq import ZmqNetwork
from tests.world.processes import command, free_port

PAIR = Path(__file__).parents[2] / "duoactor" / "pair"
CPU = 1
BATCH = 64
HELLO_S, HEARTBEAT_S = 0.5, 0.5  # seconds between two Hellos, which may be dropped; and between heartbeats
START_S = 60.0  # seconds that a start may take
SETTLE_S = 0.3  # seconds after a flood begins or ends that are not counted


@dataclass(frozen=True)
class Kind:
    """A flood. ``message``: a Hello is each connection's own; None: a process that only computes."""

    message: Message | bytes | None
    connections: int = 1
    role: Role = Role.DRAFTER
    keyed: bool = False


KINDS = {
    "a process that computes": Kind(None, connections=0),
    "heartbeats": Kind(Heartbeat()),
    "heartbeats of 100 connections": Kind(Heartbeat(), 100),
    "heartbeats of 100 connections of a key": Kind(Heartbeat(), 100, keyed=True),
    "drafts for nobody": Kind(Grow("nobody", 1, 1, (-1,), (5,), (0.0,))),
    "no message": Kind(b"x" * 10),
    "Hello": Kind(Hello(Role.DRAFTER, "", "")),
    "Hello of 100 connections of a key": Kind(Hello(Role.DRAFTER, "", ""), 100, keyed=True),
    "a client's Status": Kind(Status("s"), role=Role.CLIENT),
}


class Flood:
    """Prints a line once each connection is answered. Sends from a line ``on`` at its input to a line ``off``."""

    def __init__(self, address: str, kind: Kind, keys: Path, digest: str) -> None:
        security = load_security(keys / "drafter.key", keys / "verifier.pub") if kind.keyed else None
        own = replace(introduction(kind.role), tokenizer_digest=digest, vocab_size=8192, max_context=4096)
        own = replace(own, model_id="flood" if kind.role is Role.DRAFTER else "")
        self.kind, self.is_on, self.links = kind, False, list[Link]()
        self.connect = partial(ZmqNetwork(security).connect, address)
        self.hellos = [replace(own, actor_id=f"{own.actor_id}-{n}") for n in range(kind.connections)]

    async def run(self) -> None:
        asyncio.get_running_loop().add_reader(0, self._switch)
        self.links = [self.connect() for _ in self.hellos]
        async with asyncio.timeout(START_S):
            await asyncio.gather(*map(self._answered, self.links, self.hellos))
        print("connected", flush=True)
        told = self.kind.message
        each = self.hellos if isinstance(told, Hello) else [told] * len(self.links)
        frames = [[one] if isinstance(one, bytes) else wire.encode(one) for one in each if one is not None]
        while True:
            self._send(frames) if self.is_on else self._send([wire.encode(Heartbeat())] * len(self.links), times=1)
            await asyncio.sleep(0 if self.is_on else HEARTBEAT_S)

    def _switch(self) -> None:
        self.is_on = os.read(0, 100).endswith(b"on\n")

    def _send(self, frames: list[list[bytes]], times: int = BATCH) -> None:
        for link, message in zip(self.links, frames, strict=True):
            for _ in range(max(1, times // len(frames))):
                link.send(message)
            while link.receive_nowait() is not None:
                pass
        if not frames:
            sum(range(10_000))

    async def _answered(self, link: Link, hello: Hello) -> None:
        """Say Hello, again if it was dropped, until the connection is welcomed or refused."""
        answers = wire.Decoder(ToDrafter | ToClient)
        answer = None
        while not isinstance(answer, Welcome | Refuse):
            await link.writable()
            link.send(wire.encode(hello))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELLO_S):
                    answer = answers.decode(await link.receive())
        assert self.kind.keyed or isinstance(answer, Welcome), answer


def be_a_flood(address: str, name: str, keys: str, digest: str) -> None:
    os.sched_setaffinity(0, {CPU})
    asyncio.run(Flood(address, KINDS[name], Path(keys), digest).run())


class Reader:
    """Keeps a stream running, and counts its tokens. At temperature 1 no text repeats another, so rounds are alike."""

    def __init__(self, client: AsyncClient, pid: int) -> None:
        self._client, self._schedule, self._tokens = client, Path(f"/proc/{pid}/task/{pid}/schedstat"), 0

    async def run(self) -> None:
        while True:
            asked = self._client.stream("Once upon a time", max_tokens=1800, ignore_eos=True, temperature=1.0)
            async for chunk in asked:
                self._tokens += len(chunk.token_ids)

    async def rate(self, window_s: float) -> float:
        """Tokens per second of CPU that the verifier's main thread has."""
        await asyncio.sleep(SETTLE_S)
        tokens, cpu_s = self._tokens, self._cpu_s()
        await asyncio.sleep(window_s)
        return (self._tokens - tokens) / (self._cpu_s() - cpu_s)

    def _cpu_s(self) -> float:
        return int(self._schedule.read_text().split()[0]) / 1e9


@contextlib.contextmanager
def running(line: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def compared(client: AsyncClient, pid: int, switch: int, turns: int, window_s: float) -> tuple[float, float]:
    """The medians of tokens per second in quiet windows, and of what is left of them beside the flood."""
    quiet, kept = [], []
    async with client:
        reader = Reader(client, pid)
        stream = asyncio.create_task(reader.run())
        await reader.rate(window_s)  # the first is a warm-up
        try:
            for _ in range(turns):
                while not (rate := await reader.rate(window_s)):  # no token came: others have the CPU
                    pass
                quiet.append(rate)
                os.write(switch, b"on\n")
                kept.append(await reader.rate(window_s) / rate)
                os.write(switch, b"off\n")
        finally:
            stream.cancel()
    return statistics.median(quiet), statistics.median(kept)


def measured(kind: str, directory: Path, digest: str, turns: int, window_s: float) -> tuple[float, float]:
    keys, keyed = directory / "keys", KINDS[kind].keyed
    address = f"tcp://127.0.0.1:{free_port()}" if keyed else f"ipc://{directory}/v.ipc"
    line = command("verifier", "--quiet", f"--bind={address}", "--threads=1", "--cpus=0", f"--target={PAIR / 'target'}")
    line += ["--key", str(keys / "verifier.key"), "--allow", str(keys)] if keyed else []
    own = {"key": str(keys / "client.key"), "server_key": str(keys / "verifier.pub")} if keyed else {}
    with (
        running(line) as verifier,
        running([sys.executable, __file__, address, kind, str(keys), digest]) as flood,
    ):
        assert flood.stdin is not None and flood.stdout is not None
        assert flood.stdout.readline() == b"connected\n", "the flood has no answer"
        client = AsyncClient(address, timeout=START_S, **own)
        return asyncio.run(compared(client, verifier.pid, flood.stdin.fileno(), turns, window_s))


def main() -> None:
    from transformers import AutoTokenizer

    from actors.engines.text.tokenizer import tokenizer_digest

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    digest = tokenizer_digest(AutoTokenizer.from_pretrained(PAIR / "target"))
    with tempfile.TemporaryDirectory() as directory:
        for name, role in (("verifier", ()), ("drafter", (KeyRole.DRAFTER,)), ("client", ())):
            KeyPair.generate().write(Path(directory, "keys"), name, role)
        for kind in options.kinds.split(","):
            rate, kept = measured(kind, Path(directory), digest, options.turns, options.window_s)
            print(f"{kind:36} {kept:5.2f} of {rate:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    be_a_flood(*sys.argv[1:]) if len(sys.argv) == 5 and sys.argv[1].startswith(("ipc:", "tcp:")) else main()
