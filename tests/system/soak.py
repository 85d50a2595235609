"""Everything goes wrong at once, and no text changes: run it by hand, ``python tests/system/soak.py --seconds 120``.

Starts ``duoactor up`` with the bundled pair and several drafters. Streams run all the time, with every method, greedy
and sampled; meanwhile actors are killed and stopped, drafters swapped and drained, streams cancelled, cut off and
resumed, request ids sent again while they run, and peers say nonsense. Every text is compared with what ``vanilla``
said in peace. At the end nothing may be left: no request, no KV slot, no actor that does not answer. Prints one JSON
document; the exit code is 1 if a text differed, or something was left or never came back.
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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from duoactor import AsyncClient, DuoactorError
from protocols import wire
from protocols.messages import Chunk, Failed, Generate, Hello, Method, Role, Sampling, ToClient
from protocols.zeromq import ZmqNetwork

METHODS = [method.value for method in Method if method is not Method.REST]  # which needs a datastore
QUESTIONS = [
    "Tom has 12 apples and buys 7 more. How many apples does he have?",
    "Write a function that adds two numbers.",
    "Repeat after me: the quick brown fox jumps over the lazy dog, and the lazy dog sleeps on.",
    "What is the capital of France, and what is it known for?",
    "Translate to German: the weather is fine today. " * 20,
]
LOOKS = [{}, {"temperature": 0.8, "seed": 3}, {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.2, "top_p": 0.9}]
TOKENS = 160
BACK_S = 60.0  # for whatever was killed to come back


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
    left: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.differ and not self.left


class Soak:
    def __init__(self, address: str, process: subprocess.Popen[str], chance: random.Random, log: TextIO) -> None:
        self.address, self.process, self.chance, self.log = address, process, chance, log
        self.hired: list[subprocess.Popen[bytes]] = []
        self.found = Findings()
        self.jobs: list[Job] = []
        self.end = 0.0
        self.idle_slots = 0  # of the KV pool, that the verifier holds without any request

    # --- streams -----------------------------------------------------------------------------------------------------

    def client(self) -> AsyncClient:
        return AsyncClient(self.address, timeout=BACK_S, reconnect_timeout=BACK_S)

    async def reference(self) -> None:
        async with self.client() as client:
            self.idle_slots = (await client.status()).kv_used
            for question in QUESTIONS:
                prompt = (await client.tokenize([{"role": "user", "content": question}])).token_ids
                for look in LOOKS:
                    options = {**look, "max_tokens": TOKENS, "ignore_eos": True}
                    answer = await client.generate(prompt, method="vanilla", **options)
                    self.jobs.append(Job(prompt, options, answer.token_ids))

    async def stream(self) -> None:
        """One answer after the other, some of them left in the middle."""
        async with self.client() as client:
            while time.monotonic() < self.end:
                job, method = self.chance.choice(self.jobs), self.chance.choice(METHODS)
                leave_at = self.chance.randrange(TOKENS) if self.chance.random() < 0.25 else TOKENS
                ids: list[int] = []
                try:
                    heard = time.monotonic()
                    async with client.stream(job.prompt, method=method, **job.options) as stream:
                        async for chunk in stream:
                            now = time.monotonic()
                            self.found.longest_silence_s = max(self.found.longest_silence_s, now - heard)
                            heard = now
                            ids += chunk.token_ids
                            if len(ids) >= leave_at:
                                break
                except DuoactorError as error:
                    self.found.failed[f"{type(error).__name__}: {error}"[:200]] += 1
                self.compare(ids, job, method, whole=leave_at == TOKENS)

    def compare(self, ids: list[int], job: Job, what: str, whole: bool = False, at: int = 0) -> None:
        self.found.compared += 1
        self.found.tokens += len(ids)
        if tuple(ids) != job.tokens[at : at + len(ids)]:
            place = next(i for i, (one, other) in enumerate(zip(ids, job.tokens[at:], strict=False)) if one != other)
            self.found.differ.append(f"{what} {job.options}: token {at + place} of {len(ids)}")
        self.found.done["streams to the end" if whole else "streams left early or cut off"] += 1

    # --- raw peers ---------------------------------------------------------------------------------------------------

    async def again(self) -> None:
        """The same live request id several times from one peer, each time with the tokens so far; then it vanishes."""
        job, method = self.chance.choice(self.jobs), self.chance.choice(METHODS)
        rid = f"again-{self.chance.random()}"
        decoder = wire.Decoder(ToClient)
        network = ZmqNetwork(None)
        link = network.connect(self.address)
        ids: list[int] = []
        try:
            async with asyncio.timeout(5.0):
                await link.writable()
                link.send(wire.encode(Hello(role=Role.CLIENT, actor_id=rid, incarnation="1")))
                for _ in range(4):
                    begin = len(ids)
                    sampling = Sampling(**job.options)
                    link.send(
                        wire.encode(
                            Generate(rid, job.prompt, sampling=sampling, method=method, generated=tuple(ids[:begin]))
                        )
                    )
                    while len(ids) < min(begin + 20, TOKENS):
                        message = decoder.decode(await link.receive())
                        if isinstance(message, Failed):
                            return
                        if isinstance(message, Chunk) and message.rid == rid and message.offset <= len(ids):
                            ids[message.offset :] = message.token_ids
        except (TimeoutError, DuoactorError):
            pass  # the verifier was being killed
        finally:
            self.compare(ids, job, f"{method}, the same id again")
            network.close()

    async def nonsense(self) -> None:
        network = ZmqNetwork(None)
        link = network.connect(self.address)
        with contextlib.suppress(TimeoutError, DuoactorError):
            async with asyncio.timeout(2.0):
                await link.writable()
                role = self.chance.choice([Role.CLIENT, Role.DRAFTER, Role.CONTROLLER])
                hello = wire.encode(Hello(role=role, actor_id="odd", incarnation="1"))
                link.send(hello)
                for _ in range(200):
                    body = bytearray(self.chance.choice([hello[1], self.chance.randbytes(64)]))
                    body[self.chance.randrange(len(body))] ^= 1 << self.chance.randrange(8)
                    link.send([hello[0], bytes(body)] if self.chance.random() < 0.8 else [bytes(body)])
                await asyncio.sleep(0.2)
        network.close()

    # --- trouble -----------------------------------------------------------------------------------------------------

    def pids(self) -> dict[str, list[int]]:
        """Of the actors that are alive, by role."""
        found: dict[str, list[int]] = {}
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        for pid in map(int, children.stdout.split()):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                role = next((w.decode() for w in words if w in (b"verifier", b"drafter", b"controller")), "")
                if role:
                    found.setdefault(role, []).append(pid)
        return found

    async def kill(self, role: str) -> None:
        if pids := self.pids().get(role):
            os.kill(self.chance.choice(pids), signal.SIGKILL)

    async def freeze(self, role: str) -> None:
        """Stopped for less, or for more, than the time to live."""
        if pids := self.pids().get(role):
            pid = self.chance.choice(pids)
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self.chance.choice([0.3, 1.0, 4.0]))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def swap(self) -> None:
        async with self.client() as client:
            names = [drafter.actor_id for drafter in (await client.status()).drafters]
            if len(names) > 1:
                await client.swap(*self.chance.sample(names, 2))

    async def drain(self) -> None:
        async with self.client() as client:
            if names := [drafter.actor_id for drafter in (await client.status()).drafters]:
                await client.drain(self.chance.choice(names))
                self.hire()

    def hire(self) -> None:
        """A drafter that was drained stays away, as asked: its successor is started by hand."""
        flags = ["--connect", self.address, "--actor-id", f"successor-{len(self.hired)}"]
        self.hired.append(subprocess.Popen([sys.executable, "-m", "duoactor", "drafter", *flags], stderr=self.log))

    async def trouble(self) -> None:
        kinds: list[tuple[str, float, Callable[[], Awaitable[None]]]] = [
            ("kill -9 of a drafter", 4, lambda: self.kill("drafter")),
            ("kill -9 of the controller", 1, lambda: self.kill("controller")),
            ("kill -9 of the verifier", 0.5, lambda: self.kill("verifier")),
            ("a drafter stopped for a while", 2, lambda: self.freeze("drafter")),
            ("the controller stopped for a while", 0.5, lambda: self.freeze("controller")),
            ("the verifier stopped for a while", 0.5, lambda: self.freeze("verifier")),
            ("swap", 4, self.swap),
            ("drain", 1, self.drain),
            ("the same request id again", 3, self.again),
            ("nonsense", 2, self.nonsense),
        ]
        while time.monotonic() < self.end:
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))
            what, _, do = self.chance.choices(kinds, [weight for _, weight, _ in kinds])[0]
            try:
                await do()
                self.found.done[what] += 1
            except DuoactorError as error:
                self.found.done[f"{what} ({type(error).__name__})"] += 1

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
            if status.requests or status.kv_used > self.idle_slots:
                return f"{len(status.requests)} requests and {status.kv_used - self.idle_slots} KV slots are left"
            if not status.drafters:
                return "no drafter is left"
            if not status.controller:
                return "no controller is left"
            job = self.jobs[0]
            answer = await client.generate(job.prompt, method="pearl", **job.options)
            self.compare(list(answer.token_ids), job, "pearl, afterwards", whole=True)
            return "" if answer.stats.accepted_tokens else "drafters draft nothing any more"

    async def run(self, seconds: float, streams: int) -> None:
        await self.reference()
        self.end = time.monotonic() + seconds
        await asyncio.gather(self.trouble(), *(self.stream() for _ in range(streams)))
        await self.check_what_is_left()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--drafters", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default="", help="file for what the actors say")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        address = f"ipc://{directory}/run/v.ipc"
        log = open(options.log or f"{directory}/log", "w")  # noqa: SIM115
        up = subprocess.Popen(
            [sys.executable, "-m", "duoactor", "up", "--bind", address, "--drafters", str(options.drafters)],
            stdout=log, stderr=log, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        soak = Soak(address, up, random.Random(options.seed), log)
        try:
            begin = time.monotonic()
            asyncio.run(soak.run(options.seconds, options.streams))
            took = time.monotonic() - begin
            up.send_signal(signal.SIGINT)
            if up.wait(30) != 0:
                soak.found.left.append(f"`duoactor up` ended with {up.returncode}")
        finally:
            for process in (up, *soak.hired):
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            log.close()
    found = soak.found
    document = {
        "good": found.good,
        "seconds": round(took),
        "compared": found.compared,
        "tokens": found.tokens,
        "longest_silence_s": round(found.longest_silence_s, 1),
        "done": dict(found.done.most_common()),
        "failed": dict(found.failed.most_common()),
        "differ": found.differ[:20],
        "left": found.left,
    }
    print(json.dumps(document, indent=2))
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
