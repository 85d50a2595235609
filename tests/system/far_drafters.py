"""What a drafter brings by its distance, live: ``python -m tests.system.far_drafters --target build/benchmarks/big``.

Two verifiers on one CPU, of which one has a drafter (CURVE keys, tcp) on another CPU, behind a relay that delays every
byte each way and models the loss of TCP segments. Prompts are asked of both in turns, one stream at a time: ``vanilla``
and ``auto``. Two processes of the same code differ, so each ``auto`` is set against its own process's ``vanilla``.
Neither verifier drafts by itself or remembers texts. The model's forecast is the controller's own function, fed with
the statistics of rounds as a controller is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from duoactor import AsyncClient
from duoactor.bench.relay import Relay
from duoactor.bench.suites import load_suite, select
from protocols.address import parse
from protocols.messages import RoundStats
from tests.world.processes import command, free_port, run

TASKS = ("chat", "code", "translation", "math_reasoning")
WARM_UP = 3  # answers, until drafts are measured and the controller has spoken


@dataclass
class Heard:
    """The rounds of one answer."""

    rounds: list[RoundStats] = field(default_factory=list)

    async def listen(self, client: AsyncClient) -> None:
        async for message in client.telemetry():
            if isinstance(message, RoundStats):
                self.rounds.append(message)

    @property
    def drafted(self) -> float:
        """Share of the rounds whose drafter was in use."""
        return sum(one.plan is not None for one in self.rounds) / max(1, len(self.rounds))

    @property
    def gamma(self) -> float:
        known = [one.plan.gamma for one in self.rounds if one.plan is not None and one.plan.gamma]
        return statistics.fmean(known) if known else 0.0


class Far:
    def __init__(self, directory: Path, target: str, tokens: int) -> None:
        self.directory, self.tokens = directory, tokens
        for name, roles in (("verifier", ["client"]), ("laptop", ["drafter"]), ("admin", ["operator", "controller"])):
            run("keys", name, *[f"--role={role}" for role in roles], "--directory", "keys", cwd=directory)
        self.log = (directory / "log").open("w")
        self.started: list[subprocess.Popen[bytes]] = []
        keys = ("--key", "keys/verifier.key", "--allow", "keys")
        self.addresses = []
        for _ in range(2):
            port = free_port()
            self.addresses.append(f"tcp://127.0.0.1:{port}")
            self.start("verifier", "--bind", self.addresses[-1], *keys, "--target", target, "--inline-draft", "none",
                       "--memory", "0", "--threads", "1", "--cpus", "0")  # fmt: skip
        self.start("controller", *self.keys("admin"), "--connect", self.addresses[1])

    def keys(self, name: str) -> tuple[str, ...]:
        return ("--key", f"keys/{name}.key", "--server-key", "keys/verifier.pub")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(command(*words), cwd=self.directory, stdout=self.log, stderr=self.log)
        self.started.append(child)
        return child

    def client(self, address: str) -> AsyncClient:
        keys = self.directory / "keys"
        admin, verifier = str(keys / "admin.key"), str(keys / "verifier.pub")
        return AsyncClient(address, key=admin, server_key=verifier, timeout=600)

    @contextlib.asynccontextmanager
    async def drafter(self, client: AsyncClient, relay: Relay) -> AsyncIterator[None]:
        """One that reaches the verifier through the relay."""
        name = f"far-{1000 * relay.delay_s:.0f}-{relay.lost}"
        where = ("--connect", f"tcp://127.0.0.1:{relay.port}", "--actor-id", name)
        child = self.start("drafter", *where, *self.keys("laptop"), "--threads", "1", "--cpus", "1")
        try:
            while not any(one.actor_id == name for one in (await client.status()).drafters):
                await asyncio.sleep(0.1)
            yield
        finally:
            child.terminate()
            await asyncio.to_thread(child.wait)
            while (await client.status()).drafters:
                await asyncio.sleep(0.1)

    async def rate(self, client: AsyncClient, prompt: str, method: str, tokens: int, texts: set) -> float:
        """Tokens per second after the first; ``texts`` gets the tokens."""
        turn = [{"role": "user", "content": prompt}]
        answer = await client.chat(turn, method=method, max_tokens=tokens)
        texts.add(answer.token_ids)
        return (len(answer.token_ids) - 1) / answer.stats.decode_ms * 1e3

    async def measure(self, delays: Sequence[float], losses: Sequence[float], prompts: Sequence[str]) -> None:
        port = parse(self.addresses[1]).port
        async with self.client(self.addresses[0]) as alone, self.client(self.addresses[1]) as served:
            await self.rate(alone, prompts[0], "auto", 20, set())
            print("ms, lost:  over auto without | over vanilla | gamma, rounds with it, round trip")
            for delay in delays:
                for lost in losses:
                    await self.distance(alone, served, delay, lost, port, prompts)

    async def distance(self, alone, served, delay: float, lost: float, port: int, prompts: Sequence[str]) -> None:
        async with Relay(("127.0.0.1", port), delay / 1000, lost) as relay, self.drafter(served, relay):
            heard = Heard()
            listening = asyncio.create_task(heard.listen(served))
            for prompt in prompts[:WARM_UP]:
                await self.rate(served, prompt, "auto", self.tokens, set())
            heard.rounds.clear()
            ratios, over_vanilla = [], []
            for prompt in prompts:
                texts: set[tuple[int, ...]] = set()
                vanilla = [await self.rate(one, prompt, "vanilla", self.tokens, texts) for one in (alone, served)]
                without = await self.rate(alone, prompt, "auto", self.tokens, texts) / vanilla[0]
                with_it = await self.rate(served, prompt, "auto", self.tokens, texts) / vanilla[1]
                assert len(texts) == 1, "a text differs"
                ratios.append(with_it / without)
                over_vanilla.append(with_it)
            listening.cancel()
            trips = (
                statistics.fmean([trip for one in heard.rounds if (trip := one.drafting.message_us)] or [0.0]) / 1000
            )
            each = " ".join(f"{one:.2f}" for one in ratios)
            print(f"{delay:4.0f} {lost:.2f}: {statistics.fmean(ratios):5.2f} ({each}) | "
                  f"{statistics.fmean(over_vanilla):5.2f} | {heard.gamma:4.1f}, "
                  f"{heard.drafted:4.0%}, {trips:5.1f} ms; {relay.losses} of {relay.segments} segments lost",
                  flush=True)  # fmt: skip

    def end(self) -> None:
        for child in self.started:
            child.terminate()
        for child in self.started:
            child.wait()
        self.log.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--delays", default="0,1,5,20,50", help="milliseconds each way")
    parser.add_argument("--losses", default="0,0.01")
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--limit", type=int, default=1, help="prompts of each task")
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    prompts = [one.turns[0] for one in select(load_suite(), tuple(options.tasks.split(",")), options.limit)]
    delays, losses = ([float(one) for one in text.split(",")] for text in (options.delays, options.losses))
    with tempfile.TemporaryDirectory() as directory:
        far = Far(Path(directory), str(Path(options.target).resolve()), options.tokens)
        try:
            asyncio.run(far.measure(delays, losses, prompts))
        finally:
            far.end()


if __name__ == "__main__":
    main()
