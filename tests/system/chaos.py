"""Every process is killed at random, verifier included, and no text changes: by hand, ``python -m tests.system.chaos``.

Starts ``duoactor up`` with two drafters. Each question is answered once in peace; then streams ask them all over again
while one process after the other dies by SIGKILL. One that came back is spared for as long as it was away: a machine
that takes long to start a process is hit more rarely. Every text is compared, to its last token, and pauses are told by
what was away meanwhile. With ``--url`` any OpenAI server takes the place of ours: its texts are compared, by character,
with those of its own first run, and ``--kill`` is a command that kills something of it. Prints one JSON document; the
exit code is 1 if a text differed or was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from duoactor import AsyncClient, DuoactorError
from duoactor.bench.suites import by_turns, load_suite

WAIT_S = 600.0  # for a verifier, which compiles its layers at a machine's first start
METHODS = ("auto", "tree", "duodecoding", "pearl", "sps", "pld", "sam", "lookahead", "vanilla")
PAUSES = (50, 99)  # percentiles
RANKS = ("verifier", "drafter", "controller")  # reasons for a pause, if several are away
LOOK_S = 0.2  # between two looks at which processes serve


@dataclass(frozen=True)
class Ask:
    """One question, the same every time."""

    text: str
    temperature: float
    seed: int
    tokens: int = 200


class Served(Protocol):
    """Who answers: pieces of a text, tokens or characters, as they come."""

    def pieces(self, ask: Ask, method: str) -> AsyncIterator[Sequence[object]]: ...


@dataclass
class Death:
    """Times are seconds of the monotonic clock."""

    what: str
    at: float
    back: float = math.inf  # when its successor was seen to serve


@dataclass
class Wreckage:
    compared: int = 0  # answers
    pieces: int = 0  # tokens, or characters
    differ: list[str] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)  # answers that ended with an error, by its sentence
    deaths: list[Death] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)  # begin and end: from a chunk, or the question, on

    @property
    def good(self) -> bool:
        return self.compared > 0 and not self.differ and not self.lost

    def away_in(self, begin: float, end: float) -> str:
        """What was killed or away in that time."""
        away = {death.what for death in self.deaths if death.at <= end and death.back >= begin}
        return next((what for what in (*RANKS, *sorted(away)) if what in away), "nothing")

    def document(self, seconds: float) -> dict[str, object]:
        pauses, away = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        for begin, end in self.pauses:
            pauses[self.away_in(begin, end)].append(end - begin)
        for death in self.deaths:
            if death.back < math.inf:
                away[death.what].append(death.back - death.at)
        return {
            "good": self.good,
            "seconds": round(seconds),
            "answers_compared": self.compared,
            "pieces_compared": self.pieces,
            "answers_that_differ": len(self.differ),
            "first_differences": self.differ[:10],
            "answers_lost": dict(self.lost),
            "killed": dict(Counter(death.what for death in self.deaths).most_common()),
            "away_s": {what: spread(times) for what, times in away.items()},
            "pause_s": {"any": spread([end - begin for begin, end in self.pauses])},
            "pause_s_while_away": {what: spread(times) for what, times in pauses.items()},
        }

    def table(self, seconds: float) -> str:
        """The same in short, for a page."""
        found = self.document(seconds)
        away, pauses, killed = found["away_s"], found["pause_s_while_away"], found["killed"]
        assert isinstance(away, dict) and isinstance(pauses, dict) and isinstance(killed, dict)
        lines = [
            f"{seconds / 60:.0f} minutes: {sum(killed.values())} kills, {self.compared} answers, {self.pieces:,} "
            f"tokens compared; {len(self.differ)} texts differ, {sum(self.lost.values())} answers were lost.",
            "",
            "| killed | times | back after, s: median, longest | pauses meanwhile, s: median, 99%, longest |",
            "|---|---|---|---|",
        ]
        for what in dict.fromkeys((*killed, "nothing")):
            back = away.get(what, {"50": math.nan, "longest": math.nan})
            pause = pauses.get(what, spread([]))
            lines.append(
                f"| {what} | {killed.get(what, '')} | {back['50']:.1f}, {back['longest']:.1f} | "
                f"{pause['50']:.3f}, {pause['99']:.2f}, {pause['longest']:.2f} |"
            )
        return "\n".join(lines).replace("nan, nan", "")


def spread(times: Sequence[float]) -> dict[str, float]:
    """How many, percentiles, and the longest."""
    cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else [*times] * 99 or [0.0] * 99
    found = {str(part): round(cuts[part - 1], 3) for part in PAUSES}
    return {"count": len(times), **found, "longest": round(max(times, default=0.0), 3)}


Kill = Callable[[], Awaitable[Death | None]]  # ends one process, if there is one to end


class Chaos:
    def __init__(self, served: Served, kill: Kill, every: float, seed: int) -> None:
        self.served, self.kill, self.every = served, kill, every
        self.chance = random.Random(seed)
        self.found = Wreckage()
        self.expected: dict[Ask, list[object]] = {}

    async def run(self, asks: Sequence[Ask], streams: int, seconds: float) -> Wreckage:
        for ask in asks:
            self.expected[ask] = [piece async for pieces in self.served.pieces(ask, "vanilla") for piece in pieces]
        until = time.monotonic() + seconds
        killing = asyncio.create_task(self._kill(until))
        try:
            await asyncio.gather(*(self._stream(asks, until) for _ in range(streams)))
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing
        return self.found

    async def _kill(self, until: float) -> None:
        while time.monotonic() < until:  # the answers under way then may end
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) * self.every)
            if death := await self.kill():
                self.found.deaths.append(death)

    async def _stream(self, asks: Sequence[Ask], until: float) -> None:
        while time.monotonic() < until:
            ask, method = self.chance.choice(asks), self.chance.choice(METHODS)
            try:
                await self._answer(ask, method)
            except (DuoactorError, OSError) as error:
                self.found.lost[f"{type(error).__name__}: {error}"[:200]] += 1

    async def _answer(self, ask: Ask, method: str) -> None:
        expected, at, began = self.expected[ask], 0, time.monotonic()
        async for pieces in self.served.pieces(ask, method):
            now = time.monotonic()
            self.found.pauses.append((began, now))
            began = now
            if list(pieces) != expected[at : at + len(pieces)]:
                self.found.differ.append(f"{method}, temperature {ask.temperature}: {ask.text[:40]!r} behind {at}")
                return
            at += len(pieces)
        if at < len(expected):
            self.found.differ.append(f"{method}, {ask.text[:40]!r}: {at} pieces of {len(expected)}")
        self.found.compared += 1
        self.found.pieces += at


@dataclass
class Ours:
    """Our verifier: its tokens."""

    client: AsyncClient

    async def pieces(self, ask: Ask, method: str) -> AsyncIterator[Sequence[object]]:
        options = {"temperature": ask.temperature, "seed": ask.seed, "max_tokens": ask.tokens, "ignore_eos": True}
        async for chunk in self.client.stream(ask.text, method=method, **options):
            yield chunk.token_ids


@dataclass
class Theirs:
    """Any OpenAI server: characters of its text."""

    url: str
    model: str

    async def pieces(self, ask: Ask, method: str) -> AsyncIterator[Sequence[object]]:
        import httpx  # comes with the openai client

        body = {
            "model": self.model,
            "prompt": ask.text,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "max_tokens": ask.tokens,
            "stream": True,
        }
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            try:
                async with client.stream("POST", f"{self.url.rstrip('/')}/completions", json=body) as answer:
                    if answer.status_code != 200:
                        raise OSError(f"HTTP {answer.status_code}: {(await answer.aread())[:120]!r}")
                    ended = False
                    async for line in answer.aiter_lines():
                        if line == "data: [DONE]":
                            ended = True
                        elif line.startswith("data: "):
                            chunk = json.loads(line.removeprefix("data: "))
                            if "error" in chunk:
                                raise OSError(str(chunk["error"]))
                            for choice in chunk["choices"]:
                                yield choice["text"]
                    if not ended:
                        raise OSError("the stream ended without [DONE]")
            except httpx.HTTPError as error:
                raise OSError(f"{type(error).__name__}: {error}") from None


class Killer:
    """Kills one of the processes that serve, each as likely as any other. One that is still loading is spared, and
    while the verifier is, nothing else serves."""

    def __init__(self, client: AsyncClient, chance: random.Random) -> None:
        self.client, self.chance = client, chance
        self._serving: dict[str, tuple[str, int]] = {}  # by actor id: what it is, process id
        self._deaths: dict[str, tuple[Death, int]] = {}  # the latest of each actor, and the process that died

    async def kill(self) -> Death | None:
        now = time.monotonic()
        grown = [name for name in self._serving if self._may_be_hit(name, now)]
        if not grown:
            return None
        name = self.chance.choice(grown)
        what, pid = self._serving.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if what == "verifier":
            self._serving.clear()
        death = Death(what, now)
        self._deaths[name] = death, pid
        return death

    def _may_be_hit(self, name: str, now: float) -> bool:
        if name not in self._deaths:
            return True
        death, _ = self._deaths[name]
        return now - death.back >= death.back - death.at

    async def watch(self) -> None:
        """Look again and again at which processes serve; it does not return."""
        while True:
            await asyncio.sleep(LOOK_S)
            began = time.monotonic()
            try:
                async with asyncio.timeout(1.0):
                    status = await self.client.status()
            except (TimeoutError, DuoactorError):
                continue
            found = [(drafter.actor_id, "drafter", drafter.pid) for drafter in status.drafters]
            found.append(("verifier", "verifier", status.verifier.pid))
            if status.controller is not None:
                found.append(("controller", "controller", status.controller.pid))
            self._serving = {name: (what, pid) for name, what, pid in found if self._lives(name, pid, began)}

    def _lives(self, name: str, pid: int, now: float) -> bool:
        """Whether a process that the verifier told of is not the one that was killed."""
        if name not in self._deaths:
            return True
        death, dead = self._deaths[name]
        if pid != dead:
            death.back = min(death.back, now)
        return pid != dead


def commanded(line: str) -> Kill:
    """Runs a shell command that kills something."""

    async def kill() -> Death | None:
        if not line:
            return None
        process, now = await asyncio.create_subprocess_shell(line), time.monotonic()
        return Death(line, now, now) if await process.wait() == 0 else None

    return kill


def started(line: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(line, stdout=subprocess.DEVNULL)


@asynccontextmanager
async def ours(options: argparse.Namespace) -> AsyncIterator[tuple[Served, Kill]]:
    with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp") as directory:
        address = f"ipc://{directory}/v.ipc"
        line = [sys.executable, "-m", "duoactor", "up", "--quiet", "--http=none", "--bind", address, "--drafters", "2"]
        line += [f"--target={options.target}"]
        line += [f"--draft={options.draft}"] if options.draft else []
        process = started(line)
        try:
            async with AsyncClient(address, timeout=WAIT_S, reconnect_timeout=WAIT_S) as client:
                killer = Killer(client, random.Random(options.seed))
                watching = asyncio.create_task(killer.watch())
                yield Ours(client), killer.kill
                watching.cancel()
            process.send_signal(signal.SIGINT)
            await asyncio.to_thread(process.wait, 30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


@asynccontextmanager
async def theirs(options: argparse.Namespace) -> AsyncIterator[tuple[Served, Kill]]:
    yield Theirs(options.url, options.model), commanded(options.kill)


def questions(seed: int, tokens: int) -> list[Ask]:
    """Two of each task of the built-in suite; greedy, and at temperature 1."""
    texts = [prompt.turns[0] for prompt in by_turns(load_suite())[:14]]
    return [Ask(text, float(number % 2), seed + number, tokens) for number, text in enumerate(texts)]


async def measured(options: argparse.Namespace) -> tuple[Wreckage, float]:
    async with (theirs if options.url else ours)(options) as (served, kill):
        chaos = Chaos(served, kill, options.every, options.seed)
        began = time.monotonic()
        found = await chaos.run(questions(options.seed, options.tokens), options.streams, 60 * options.minutes)
        return found, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer: long enough to be hit in the middle")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="bundled", help="as `duoactor up` takes it")
    parser.add_argument("--draft", default="")
    parser.add_argument("--url", default="", help="of an OpenAI server instead, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="", help="its name there")
    parser.add_argument("--kill", default="", help="with --url: a shell command that kills something of the server")
    parser.add_argument("--table", action="store_true", help="print a table for a page instead of JSON")
    options = parser.parse_args()
    found, seconds = asyncio.run(measured(options))
    print(found.table(seconds) if options.table else json.dumps(found.document(seconds), indent=2))
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
