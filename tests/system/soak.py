"""Everything goes wrong at once, and no text changes: run it by hand, ``python -m tests.system.soak --seconds 120``.

Starts ``duoactor up`` with the bundled pair and several drafters, on a disk that is full where its output goes. Streams
run all the time, with every method, greedy and sampled; meanwhile actors are killed and stopped, their wall clocks
jump, drafters are swapped and drained, streams cancelled, cut off, resumed and read slowly, request ids sent again
while they run, and peers say nonsense. Every text is compared with what ``vanilla`` said in peace. At the end nothing
may be left: no request, no KV slot, no actor that does not answer, and no memory. Prints one JSON document; the exit
code is 1 if a text differed or was lost, or something was left or has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from duoactor import AsyncClient, DuoactorError
from tests.system import soak_returns
from tests.system.soak_memory import Memory
from tests.system.soak_returns import BACK_S, Return
from tests.system.soak_troubles import METHODS, TOKENS, Troubles, Up
from tests.world.wall_clocks import WallClocks

QUESTIONS = [
    "Tom has 12 apples and buys 7 more. How many apples does he have?",
    "Write a function that adds two numbers.",
    "Repeat after me: the quick brown fox jumps over the lazy dog, and the lazy dog sleeps on.",
    "What is the capital of France, and what is it known for?",
    "Translate to German: the weather is fine today. " * 20,
]
LOOKS = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.2, "top_p": 0.9}]
LOOK_S = 2.0  # between two looks at the memory that processes hold


@dataclass(frozen=True)
class Job:
    """What is asked, and the text that vanilla gave."""

    prompt: tuple[int, ...]
    options: dict[str, object]
    tokens: tuple[int, ...]


@dataclass
class Findings:
    compared: int = 0
    tokens: int = 0
    differ: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)  # requests that ended with an error, by its sentence
    done: Counter[str] = field(default_factory=Counter)  # what was done to the system
    longest_silence_s: float = 0.0  # between two chunks of one stream
    returns: list[Return] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    left: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.differ and not self.left and not self.failed


class Soak:
    def __init__(self, address: str, up: Up, chance: random.Random, spared: Container[str]) -> None:
        self.address, self.chance = address, chance
        self.troubles = Troubles(self, up, chance, spared)
        self.found = Findings()
        self.jobs: list[Job] = []
        self.end = 0.0
        self.most = 0  # requests
        self.idle_slots = 0  # slots of the KV pool that the verifier holds without any request

    # --- streams -----------------------------------------------------------------------------------------------------

    def client(self) -> AsyncClient:
        return AsyncClient(self.address, timeout=BACK_S, reconnect_timeout=BACK_S)

    async def reference(self) -> None:
        async with self.client() as client:
            self.idle_slots = (await client.status()).target.kv_used
            for question in QUESTIONS:
                prompt = (await client.tokenize([{"role": "user", "content": question}])).token_ids
                for look in LOOKS:
                    options = {**look, "max_tokens": TOKENS, "ignore_eos": True}
                    answer = await client.generate(prompt, method="vanilla", **options)
                    self.jobs.append(Job(prompt, options, answer.token_ids))

    async def stream(self) -> None:
        """One answer after the other, some of them left in the middle."""
        async with self.client() as client:
            while not self.over():
                job, method = self.chance.choice(self.jobs), self.chance.choice(METHODS)
                leave_at = self.chance.randrange(TOKENS) if self.chance.random() < 0.25 else 0
                await self.answer(client, job, method, leave_at)

    async def answer(self, client: AsyncClient, job: Job, method: str, leave_at: int = 0) -> None:
        """``leave_at``: tokens after which it is left."""
        ids: list[int] = []
        whole = False
        try:
            heard = time.monotonic()
            async with client.stream(job.prompt, method=method, **job.options) as stream:
                async for chunk in stream:
                    now = time.monotonic()
                    self.found.longest_silence_s = max(self.found.longest_silence_s, now - heard)
                    heard = now
                    ids += chunk.token_ids
                    if leave_at and len(ids) >= leave_at:
                        break
            whole = not leave_at
        except DuoactorError as error:
            self.found.failed[f"{type(error).__name__}: {error}"[:200]] += 1
        finally:
            self.compare(ids, job, method, whole)

    def over(self) -> bool:
        return time.monotonic() >= self.end or self.found.compared >= self.most > 0

    def compare(self, ids: list[int], job: Job, what: str, whole: bool = False, at: int = 0) -> None:
        self.found.compared += 1
        self.found.tokens += len(ids)
        if tuple(ids) != job.tokens[at : at + len(ids)]:
            place = next(i for i, (one, other) in enumerate(zip(ids, job.tokens[at:], strict=False)) if one != other)
            self.found.differ.append(f"{what} {job.options}: token {at + place} of {len(ids)}")
        elif whole and len(ids) < len(job.tokens):
            self.found.differ.append(f"{what} {job.options}: {len(ids)} tokens of {len(job.tokens)}")
        self.found.done["streams to the end" if whole else "streams left early or cut off"] += 1

    # --- afterwards --------------------------------------------------------------------------------------------------

    async def check_what_is_left(self) -> None:
        """Everything is as after the start: all actors there, nothing held, and drafts are made."""
        until = time.monotonic() + BACK_S
        problem = "no answer"
        while time.monotonic() < until:
            await asyncio.sleep(0.5)
            with contextlib.suppress(DuoactorError):
                problem = await self._problem()
                if not problem:
                    return
        self.found.left.append(problem)

    async def _problem(self) -> str:
        async with AsyncClient(self.address, timeout=10.0) as client:
            status = await client.status()
            if status.requests or status.target.kv_used > self.idle_slots:
                return (
                    f"{len(status.requests)} requests and {status.target.kv_used - self.idle_slots} KV slots are left"
                )
            if not status.drafters:
                return "no drafter is left"
            if not status.controller:
                return "no controller is left"
            job = self.jobs[0]
            answer = await client.generate(job.prompt, method="pearl", **job.options)
            self.compare(list(answer.token_ids), job, "pearl, afterwards", whole=True)
            return "" if answer.stats.accepted_tokens else "drafters draft nothing any more"

    async def look(self) -> None:
        """At memory; and it is told how far this is."""
        begin, told = time.monotonic(), 0
        while not self.over():
            if self.found.compared >= told:
                print(f"{self.found.compared} texts, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
                told = self.found.compared + 100
            self.found.memory.see(self.found.compared, self.troubles.resident_mb())
            await asyncio.sleep(LOOK_S)

    async def run(self, seconds: float, requests: int, streams: int) -> None:
        await self.reference()
        self.end, self.most = time.monotonic() + seconds, requests
        await asyncio.gather(self.troubles.run(self.over), self.look(), *(self.stream() for _ in range(streams)))
        await self.check_what_is_left()
        self.found.left += self.found.memory.grown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--requests", type=int, default=0, help="end after so many; 0: when the time is over")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--drafters", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spare", default="", help="roles of which none is killed, as in verifier,controller")
    parser.add_argument("--log", default="/dev/full", help="file for what the actors say; usually a disk that is full")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        address = f"ipc://{directory}/run/v.ipc"
        log = open(options.log, "w")  # noqa: SIM115
        clocks = WallClocks(Path(directory))
        command = [sys.executable, "-m", "duoactor"]
        environment = {**os.environ, **clocks.environment, "OMP_NUM_THREADS": "1"}
        line = [*command, "up", "bundled", "--http=none", "--bind", address, "--drafters", str(options.drafters)]
        process = subprocess.Popen(line, stdout=log, stderr=log, env=environment)
        up = Up(process, command, environment, log, clocks)
        soak = Soak(address, up, random.Random(options.seed), options.spare.split(","))
        try:
            begin = time.monotonic()
            asyncio.run(soak.run(options.seconds, options.requests, options.streams))
            took = time.monotonic() - begin
            process.send_signal(signal.SIGINT)
            if process.wait(30) != 0:
                soak.found.left.append(f"`duoactor up` ended with {process.returncode}")
        finally:
            for one in (process, *soak.troubles.hired):
                with contextlib.suppress(ProcessLookupError):
                    one.kill()
            with contextlib.suppress(OSError):
                log.close()
    found = soak.found
    document = {
        "good": found.good,
        "seconds": round(took),
        "compared": found.compared,
        "tokens": found.tokens,
        "longest_silence_s": round(found.longest_silence_s, 1),
        "returns": soak_returns.summary(found.returns),
        "memory_mb": found.memory.of_roles(),
        "memory_mb_of_longest_lived": found.memory.of_longest_lived(),
        "done": dict(found.done.most_common()),
        "failed": dict(found.failed.most_common()),
        "differ": found.differ[:20],
        "left": found.left,
    }
    print(json.dumps(document, indent=2))
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
