"""A first token by step: from a client's request over HTTP, or over ipc, to the first text that it reads.

By hand: ``python -m tests.serve.time_first_token TARGET``. Gateway and verifier are processes that note, at each step,
the machine's clock and the CPU time of their thread. Prompts are new to every cache; nothing else is asked meanwhile.
``--beside URL PID`` asks other servers of OpenAI's API, or a whole ``duoactor up``, for the same prompts in turns; then
no steps are printed, but the times of all, and the CPU time of their processes. ``--turns`` asks a second turn as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from actors.settings import VerifierSettings
from duoactor import AsyncClient
from protocols.messages import ChatTurn, Chunk, Generate
from tests.serve.time_streams import spent_s, until_open
from tests.world.processes import below, free_port

WORDS = (Path(__file__).parents[2] / "docs/how-it-works.md").read_text().split()
IDLE_S = 0.1  # between two requests
TOKENS = 4  # of an answer
# What ends with each stamp, in the order of a request's way
STEPS = {
    "read": "client's write to the gateway's read",
    "routed": "HTTP parsed, routed",
    "parsed": "body read and parsed",
    "asked": "question to message, encoded",
    "arrived": "message to the verifier",
    "preparing": "checked",
    "prepared": "template and tokenizer",
    "admitted": "stream made",
    "planned": "waiting for a round, admission to the pool, plan",
    "computed": "the prompt's forward",
    "sampled": "sampling",
    "committed": "commit",
    "spelt": "text of the token",
    "told": "chunk encoded, queued",
    "heard": "message to the gateway",
    "shaped": "event made",
    "written": "event written",
}


class Stamps:
    """Ends of steps in one process, appended to a file after the last step of each request."""

    def __init__(self, path: str, last: str) -> None:
        self._path, self._last = path, last
        self._found: dict[str, tuple[int, int]] = {}

    def stamp(self, step: str) -> None:
        self._found.setdefault(step, (time.monotonic_ns(), time.thread_time_ns()))
        if step == self._last:
            with open(self._path, "a") as file:
                file.write(json.dumps(self._found) + "\n")

    def at(
        self, owner: Any, name: str, before: str = "", after: str = "", when: Callable[..., bool] = lambda *_: True
    ) -> None:
        """Stamp each call of a function, of those ``when`` says so of by its arguments."""
        function = getattr(owner, name)

        def enter(*args: Any) -> bool:
            counts = when(*args)
            if before and counts:
                if before in ("read", "arrived"):
                    self._found = {}
                self.stamp(before)
            return counts and bool(after)

        @wraps(function)
        def stamped(*args: Any, **named: Any) -> Any:
            leaves = enter(*args)
            found = function(*args, **named)
            if leaves:
                self.stamp(after)
            return found

        @wraps(function)
        async def awaited(*args: Any, **named: Any) -> Any:
            leaves = enter(*args)
            found = await function(*args, **named)
            if leaves:
                self.stamp(after)
            return found

        setattr(owner, name, awaited if asyncio.iscoroutinefunction(function) else stamped)


def verify(address: str, target: str, threads: int, to: str) -> None:
    from actors.engines.targets import target as targets
    from actors.verifier import admission, loop, start, streams

    stamps = Stamps(to, "told")
    stamps.at(admission.Admission, "ask", before="arrived")
    stamps.at(admission, "prepare", before="preparing", after="prepared")
    stamps.at(admission.Admission, "_prepared", after="admitted")
    stamps.at(loop, "compute", before="planned")
    stamps.at(targets, "sample", before="computed", after="sampled")
    stamps.at(streams.Stream, "chunk", before="committed", after="spelt")
    stamps.at(loop.Verifier, "_send", after="told", when=lambda _, __, message: isinstance(message, Chunk))
    start.run_verifier(VerifierSettings(target=target, bind=address, threads=threads))


def serve(address: str, port: int, to: str) -> None:
    from actors import peer
    from duoactor.client.connection import Connection
    from duoactor.serve import app, gateway, http_limits, stream
    from duoactor.serve.settings import GatewaySettings
    from duoactor.serve.start import run_gateway

    stamps = Stamps(to, "written")
    stamps.at(http_limits.LimitedProtocol, "data_received", before="read")
    stamps.at(app.Routes, "answer", before="routed")
    stamps.at(gateway.Gateway, "model", before="parsed")
    stamps.at(peer.Line, "send", after="asked", when=lambda _, message: isinstance(message, Generate))
    stamps.at(Connection, "_take", before="heard", when=lambda _, message, __: isinstance(message, Chunk))
    stamps.at(stream, "_body", before="shaped", after="written")
    run_gateway(GatewaySettings(connect=(address,), http=str(port)))


def text_of(words: int, number: int) -> str:
    """A prompt that no cache knows."""
    dice = random.Random(f"{time.monotonic_ns()}, {number}")
    return " ".join(dice.choices(WORDS, k=words))


class Http:
    """A client of a server, which connects before each request: not every server keeps connections."""

    def __init__(self, port: int, pid: int | None = None) -> None:
        self.port, self.pid = port, pid

    async def ask(self, turns: Sequence[ChatTurn]) -> tuple[float, float, float, str]:
        """(when it was asked, when the first text came, when the answer was over, its text); seconds."""
        said = [{"role": turn.role, "content": turn.content} for turn in turns]
        asked = {"messages": said, "stream": True, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        body = json.dumps(asked).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.sleep(IDLE_S)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost:{self.port}\r\ncontent-length: {len(body)}\r\n"
        begun, first, text = time.monotonic(), 0.0, ""
        writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        while (line := await reader.readline()).strip() != b"data: [DONE]":
            if not line:
                raise ConnectionError(f"port {self.port} closed the connection")
            if line.startswith(b"data: "):
                choices = json.loads(line[6:]).get("choices")
                if choices and (piece := choices[0]["delta"].get("content")):
                    first = first or time.monotonic()
                    text += piece
        writer.close()
        return begun, first, time.monotonic(), text

    def spent_s(self) -> float:
        return sum(spent_s(pid) for pid in below(self.pid)) if self.pid is not None else 0.0


async def over_ipc(client: AsyncClient, text: str) -> float:
    """Seconds to the first text."""
    begun = time.monotonic()
    first = 0.0
    async for chunk in client.stream([ChatTurn("user", text)], max_tokens=TOKENS, temperature=0, ignore_eos=True):
        first = first or (time.monotonic() if chunk.text else 0.0)
    return first - begun


def row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def in_the_middle(values: Sequence[float], digits: int = 2) -> str:
    """In milliseconds: median and lowest."""
    return f"{1000 * statistics.median(values):,.{digits}f} ({1000 * min(values):,.{digits}f})"


async def steps(port: int, address: str, files: Sequence[Path], options: argparse.Namespace) -> None:
    http = Http(port)
    async with AsyncClient(address, timeout=120) as client:
        await client.status()
        await until_open(port)
        for words in options.words:
            direct, whole, parts = list[float](), list[float](), list[dict[str, tuple[float, float]]]()
            for number in range(options.requests + 2):
                await asyncio.sleep(IDLE_S)
                alone = await over_ipc(client, text_of(words, number))
                begun, first, _, _ = await http.ask([ChatTurn("user", text_of(words, -number))])
                if number < 2:  # what is made at the first request stays
                    continue
                direct.append(alone)
                whole.append(first - begun)
                found = [json.loads(file.read_text().splitlines()[-1]) for file in files]
                parts.append(taken(begun, first, found))
            tell(words, direct, whole, parts)


def taken(begun: float, first: float, found: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Seconds of each step, by the clock and of the CPU in its process."""
    ends: dict[str, tuple[float, float]] = {}
    for stamps in found:
        before = None
        for step in STEPS:
            if step in stamps:
                at, cpu = stamps[step]
                ends[step] = at / 1e9, (cpu - before) / 1e9 if before is not None else 0.0
                before = cpu
    made, last = dict[str, tuple[float, float]](), begun
    for step in STEPS:
        at, cpu = ends[step]
        made[step] = at - last, cpu
        last = at
    made["come"] = first - last, 0.0
    return made


def tell(
    words: int, direct: Sequence[float], whole: Sequence[float], parts: Sequence[dict[str, tuple[float, float]]]
) -> None:
    print(f"\n{words} words, {len(whole)} requests; median (lowest), ms\n")
    row("step", "by the clock", "CPU time of its thread")
    row(*["---"] * 3)
    for step, name in {**STEPS, "come": "the client's read"}.items():
        spent = [one[step][1] for one in parts]
        row(name, in_the_middle([one[step][0] for one in parts], 3), in_the_middle(spent, 3) if any(spent) else "")
    row("**all, HTTP**", in_the_middle(whole), "")
    row("all, ipc", in_the_middle(direct), "")


async def beside(servers: Sequence[Http], options: argparse.Namespace) -> None:
    """Ask all servers for the same prompts, in turns."""
    row("words", "turn", *[f"port {one.port}: first token, ms" for one in servers], "ratios", "CPU ms a request")
    row(*["---"] * (4 + len(servers)))
    for words in options.words:
        firsts = [[list[float]() for _ in servers] for _ in range(1 + options.turns)]
        spent = [[list[float]() for _ in servers] for _ in range(1 + options.turns)]
        for number in range(options.requests + 2):
            texts = [text_of(words, number), text_of(20, -number)]
            for at, server in list(enumerate(servers))[:: 1 if number % 2 else -1]:
                turns: list[ChatTurn] = []
                for turn in range(1 + options.turns):
                    turns.append(ChatTurn("user", texts[turn]))
                    before = server.spent_s()
                    begun, first, _, answer = await server.ask(turns)
                    await asyncio.sleep(IDLE_S)
                    turns.append(ChatTurn("assistant", answer))
                    if number >= 2:
                        firsts[turn][at].append(first - begun)
                        spent[turn][at].append(server.spent_s() - before)
        for turn, found in enumerate(firsts):
            ratios = [statistics.median([a / b for a, b in zip(found[0], one, strict=True)]) for one in found]
            cpu = [f"{1000 * statistics.median(one):.1f}" for one in spent[turn]]
            shown = [in_the_middle(one, 1) for one in found]
            row(words, turn + 1, *shown, ", ".join(f"{one:.2f}" for one in ratios[1:]), ", ".join(cpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="?", default="bundled")
    parser.add_argument("--words", type=int, nargs="*", default=[20, 300])
    parser.add_argument("--requests", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--beside", nargs=2, action="append", metavar=("PORT", "PID"), type=int)
    parser.add_argument("--turns", action="store_true")
    options = parser.parse_args()
    if options.beside:
        asyncio.run(beside([Http(*one) for one in options.beside], options))
        return
    start = multiprocessing.get_context("spawn").Process
    with tempfile.TemporaryDirectory() as folder:
        address, port = f"ipc://{folder}/v.ipc", free_port()
        files = [Path(folder, name) for name in ("gateway", "verifier")]
        actors = [
            start(target=serve, args=(address, port, str(files[0]))),
            start(target=verify, args=(address, options.target, options.threads, str(files[1]))),
        ]
        for actor in actors:
            actor.start()
        try:
            asyncio.run(steps(port, address, files, options))
        finally:
            for actor in actors:
                actor.terminate()
                actor.join()


if __name__ == "__main__":
    main()
