"""What a drafter on a second machine adds to the best that one can do: ``python -m tests.system.second_machine``.

Two verifiers share one CPU and take turns. Both draft with ``auto``: inline, from the text and from memory. One has
also a drafter (CURVE keys, tcp) on another CPU. Its relay delays every byte each way and models the loss of TCP
segments. Each prompt is asked of both; their texts must be equal. At the end the same answers are streamed eight times
over, and in four of them the drafter is killed with SIGKILL and started again, at once or behind them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duoactor import AsyncClient
from duoactor.bench.suites import load_suite, select
from protocols.address import parse
from protocols.messages import RequestStats
from tests.world.processes import command, free_port, run
from tools.speedups.relay import Relay

TASKS = "chat,code,translation,math_reasoning"
ANSWER = 400  # tokens of an answer that is streamed while the drafter may be killed
WARM_UP = 2  # answers, until drafts are measured and the controller has spoken


@dataclass
class Stretch:
    """A stream without a break."""

    tokens: int = 0
    seconds: float = 0.0
    longest: float = 0.0  # s between two chunks of an answer

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, longest pause {1000 * self.longest:.0f} ms"


class Hosts:
    """Verifiers on CPU 0, drafters on CPU 1; the second verifier is the one that is drafted for from afar."""

    def __init__(self, directory: Path, target: str, draft: str) -> None:
        self.directory, self.draft = directory, draft
        for name, roles in (("verifier", ["client"]), ("laptop", ["drafter"]), ("admin", ["operator", "controller"])):
            run("keys", name, *[f"--role={role}" for role in roles], "--directory", "keys", cwd=directory)
        self.log = (directory / "log").open("w")
        self.started: list[subprocess.Popen[bytes]] = []
        keys = ("--key", "keys/verifier.key", "--allow", "keys")
        self.addresses = []
        for _ in range(2):
            self.addresses.append(f"tcp://127.0.0.1:{free_port()}")
            self.start("verifier", "--bind", self.addresses[-1], *keys, "--target", target, "--inline-draft", draft,
                       "--threads", "1", "--cpus", "0")  # fmt: skip
            self.start("controller", *self.keys("admin"), "--connect", self.addresses[-1])

    def keys(self, name: str) -> tuple[str, ...]:
        return ("--key", f"keys/{name}.key", "--server-key", "keys/verifier.pub")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(command(*words), cwd=self.directory, stdout=self.log, stderr=self.log)
        self.started.append(child)
        return child

    def drafter(self, relay: Relay) -> subprocess.Popen[bytes]:
        where = ("--connect", f"tcp://127.0.0.1:{relay.port}", "--draft", self.draft)
        return self.start("drafter", *where, *self.keys("laptop"), "--threads", "1", "--cpus", "1")

    @contextlib.asynccontextmanager
    async def drafting(
        self, client: AsyncClient, delay_ms: float, lost: float
    ) -> AsyncIterator[list[subprocess.Popen]]:
        """A drafter so far away; it may be replaced in the list."""
        port = parse(self.addresses[1]).port
        async with Relay(("127.0.0.1", port), delay_ms / 1000, lost) as relay:
            self.relay, children = relay, [self.drafter(relay)]
            try:
                while not (await client.status()).drafters:
                    await asyncio.sleep(0.1)
                yield children
            finally:
                for child in children:
                    child.terminate()
                    await asyncio.to_thread(child.wait)
                while (await client.status()).drafters:
                    await asyncio.sleep(0.1)

    def clients(self) -> list[AsyncClient]:
        keys = self.directory / "keys"
        admin, verifier = str(keys / "admin.key"), str(keys / "verifier.pub")
        return [AsyncClient(address, key=admin, server_key=verifier, timeout=600) for address in self.addresses]

    def end(self) -> None:
        for child in self.started:
            child.terminate()
        for child in self.started:
            child.wait()
        self.log.close()


async def asked(client: AsyncClient, prompt: str, method: str, tokens: int, texts: set[tuple[int, ...]]) -> float:
    """Tokens per second after the first; ``texts`` gets the tokens."""
    salt = uuid.uuid4().hex  # neither prefix nor memory of an earlier time
    turn = [{"role": "user", "content": prompt}]
    answer = await client.chat(turn, method=method, max_tokens=tokens, ignore_eos=True, cache_salt=salt)
    texts.add(answer.token_ids)
    return rate_of(answer.stats)


def rate_of(stats: RequestStats) -> float:
    return 1000 * (stats.completion_tokens - 1) / stats.decode_ms


async def distance(alone: AsyncClient, served: AsyncClient, tokens: int, prompts: Sequence[str]) -> str:
    for prompt in prompts[:WARM_UP]:
        for client in (alone, served):
            await asked(client, prompt, "auto", tokens, set())
    ratios, local, both = [], [], []
    for number, prompt in enumerate(prompts):
        texts: set[tuple[int, ...]] = set()
        plain = await asked(alone, prompt, "vanilla", tokens, texts)
        found = {}
        for client in (alone, served) if number % 2 else (served, alone):
            found[client] = await asked(client, prompt, "auto", tokens, texts)
        assert len(texts) == 1, "a text differs"
        ratios.append(found[served] / found[alone])
        local.append(found[alone] / plain)
        both.append(found[served] / plain)
    each = " ".join(f"{one:.2f}" for one in ratios)
    return (
        f"{statistics.fmean(ratios):5.2f} ({each}) | one machine {statistics.fmean(local):.2f}, "
        f"two {statistics.fmean(both):.2f} of vanilla"
    )


async def stretch(
    client: AsyncClient, prompts: Sequence[str], answers: int, midway: Callable[[], None] | None = None
) -> Stretch:
    """So many answers without a break, the same ones every time; ``midway`` is called within one of them."""
    found, began = Stretch(), time.monotonic()
    for number in range(answers):
        heard = None
        stream = client.stream(
            prompts[number % len(prompts)], max_tokens=ANSWER, ignore_eos=True, cache_salt=uuid.uuid4().hex
        )
        async for chunk in stream:
            now = time.monotonic()
            found.longest = max(found.longest, now - (heard or now))
            heard = now
            found.tokens += len(chunk.token_ids)
            if midway is not None and found.tokens > answers * ANSWER / 3:
                midway()
                midway = None
    found.seconds = time.monotonic() - began
    return found


async def killed(
    hosts: Hosts, served: AsyncClient, prompts: Sequence[str], answers: int, delay: float, at_once: bool
) -> None:
    """What a kill costs: the same answers in peace and with a kill, in the order A B B A, twice. ``at_once``: it is
    started again in their middle; else behind them, for a start takes what this machine shares with the target: caches,
    memory, half of a core. A second machine's takes its own."""
    async with hosts.drafting(served, delay, 0.0) as children:

        def kill() -> None:
            children[-1].kill()
            children.pop().wait()
            if at_once:
                children.append(hosts.drafter(hosts.relay))

        await stretch(served, prompts, len(prompts))
        costs = []
        for order in (False, True) * 2:
            found = {}
            for hit in (order, not order):
                if not children:
                    children.append(hosts.drafter(hosts.relay))
                while not (await served.status()).drafters:  # its start is no part of the next answers
                    await asyncio.sleep(0.1)
                found[hit] = await stretch(served, prompts, answers, kill if hit else None)
            costs.append(found[True].seconds - found[False].seconds)
            print(
                f"{found[True].tokens} tokens: in peace {found[False]}; with the drafter killed {found[True]}",
                flush=True,
            )
        each = " ".join(f"{100 * cost / 60:+.1f}" for cost in costs)
        when = "at once" if at_once else "behind the answers"
        cost = 100 * statistics.median(costs) / 60
        print(f"started again {when}, a kill costs {cost:.1f}% of a minute ({each})", flush=True)


async def measure(hosts: Hosts, options: argparse.Namespace) -> None:
    prompts = [one.turns[0] for one in select(load_suite(), tuple(options.tasks.split(",")), options.limit)]
    alone, served = hosts.clients()
    async with alone, served:
        print("ms each way, lost:  two machines over one (each prompt)", flush=True)
        for delay in numbers(options.delays):
            for lost in numbers(options.losses):
                async with hosts.drafting(served, delay, lost):
                    step_us = (await served.status()).drafters[0].step_us
                    said = await distance(alone, served, options.tokens, prompts)
                c = served.welcome.forward_us[0][1] / step_us
                print(f"{delay:5.1f} {lost:.3f}: {said}; c = {c:.0f}", flush=True)
        if options.answers:
            for at_once in (True, False):
                await killed(hosts, served, prompts, options.answers, numbers(options.delays)[0], at_once)


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="bundled")
    parser.add_argument("--draft", default="bundled")
    parser.add_argument("--delays", default="0.2,1,5,20", help="milliseconds each way")
    parser.add_argument("--losses", default="0,0.001")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, default=1, help="prompts of each task")
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--answers", type=int, default=4, help="in a row, with and without a kill; 0: none is killed")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for model in ("target", "draft"):
        if Path(getattr(options, model)).exists():
            setattr(options, model, str(Path(getattr(options, model)).resolve()))
    with tempfile.TemporaryDirectory() as directory:
        hosts = Hosts(Path(directory), options.target, options.draft)
        try:
            asyncio.run(measure(hosts, options))
        finally:
            hosts.end()


if __name__ == "__main__":
    main()
