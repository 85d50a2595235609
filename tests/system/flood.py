"""What a peer that sends as fast as it can costs a stream of method auto: ``python -m tests.system.flood``.

The verifier has one CPU and the flood another, each kind in its turn; they are compared with a process there that only
computes. A stream is 1,800 tokens, some 600 rounds. What is told are tokens per second that the verifier's main thread
has had its CPU, so that others who use it meanwhile do not matter much.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from actors.peer import introduction
from duoactor import Client
from protocols import wire
from protocols.messages import Grow, Heartbeat, Hello, Role, Status, ToClient, ToDrafter, Welcome
from protocols.zeromq import ZmqNetwork

PAIR = Path(__file__).parents[2] / "duoactor" / "pair"
CPU = 1
BATCH = 64
MANY = "heartbeats of 100 connections"  # connections of one host, without keys: each pays for itself
KINDS = {
    "a process that computes": None,
    "heartbeats": Heartbeat(),
    MANY: Heartbeat(),
    "drafts for nobody": Grow("nobody", 1, 1, (-1,), (5,), (0.0,)),
    "no message": b"x" * 10,
    "Hello": Hello(Role.DRAFTER, "", ""),
    "a client's Status": Status("s"),
}


async def flood(address: str, kind: str, digest: str) -> None:
    message, role = KINDS[kind], Role.CLIENT if kind.startswith("a client") else Role.DRAFTER
    hello = replace(introduction(role, f"flooder-{os.getpid()}"), tokenizer_digest=digest, vocab_size=8192)
    hello = replace(hello, max_context=4096, model_id="flood" if role is Role.DRAFTER else "")
    network = ZmqNetwork()
    links = [network.connect(address) for _ in range(100 if kind == MANY else 1)]
    for number, link in enumerate(links):
        await link.writable()
        own = replace(hello, actor_id=f"{hello.actor_id}-{number}")
        link.send(wire.encode(own))
        answer = wire.Decoder(ToDrafter | ToClient).decode(await link.receive())
        assert isinstance(answer, Welcome), answer
    if isinstance(message, Hello):
        message = own
    frames = [message] if isinstance(message, bytes) else wire.encode(message)
    print("on", flush=True)
    while True:
        for link in links:
            for _ in range(max(1, BATCH // len(links))):
                link.send(frames)
            while link.receive_nowait() is not None:
                pass
        await asyncio.sleep(0)


def be_a_flood(address: str, kind: str, digest: str) -> None:
    os.sched_setaffinity(0, {CPU})
    if KINDS[kind] is None:
        print("on", flush=True)
        while True:
            pass
    asyncio.run(flood(address, kind, digest))


def rate(client: Client, pid: int) -> float:
    """Tokens per second of CPU that the verifier's main thread has had."""
    schedule = Path(f"/proc/{pid}/task/{pid}/schedstat")
    before = int(schedule.read_text().split()[0])
    tokens = len(client.generate("Once upon a time", max_tokens=1800, ignore_eos=True).token_ids)
    return tokens / (int(schedule.read_text().split()[0]) - before) * 1e9


def main() -> None:
    from transformers import AutoTokenizer

    from actors.engines.text.tokenizer import tokenizer_digest

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    digest = tokenizer_digest(AutoTokenizer.from_pretrained(PAIR / "target"))
    found: dict[str, list[float]] = {kind: [] for kind in options.kinds.split(",")}
    with tempfile.TemporaryDirectory() as directory:
        address = f"ipc://{directory}/v.ipc"
        command = [
            sys.executable,
            "-m",
            "duoactor",
            "verifier",
            "--quiet",
            f"--bind={address}",
            "--threads=1",
            "--cpus=0",
        ]
        verifier = subprocess.Popen([*command, f"--target={PAIR / 'target'}"])
        try:
            with Client(address, timeout=600) as client:
                rate(client, verifier.pid)
                for kind in list(found) * options.repeats:
                    one = subprocess.Popen([sys.executable, __file__, address, kind, digest], stdout=subprocess.PIPE)
                    try:
                        assert one.stdout is not None and one.stdout.readline() == b"on\n"
                        found[kind].append(rate(client, verifier.pid))
                    finally:
                        one.kill()
                        one.wait()
        finally:
            verifier.terminate()
            verifier.wait()
    plain = statistics.median(next(iter(found.values())))
    for kind, rates in found.items():
        each = ", ".join(f"{one:.0f}" for one in rates)
        print(f"{kind:24} {statistics.median(rates) / plain:5.2f}  tokens/s: {each}")


if __name__ == "__main__":
    be_a_flood(*sys.argv[1:]) if len(sys.argv) == 4 and not sys.argv[1].startswith("-") else main()
