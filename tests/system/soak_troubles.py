"""What is done to the system during a soak: see ``soak.py``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from soak_returns import LOOK_S, Return

from duoactor import DuoactorError
from protocols import wire
from protocols.messages import Chunk, Failed, Generate, Hello, Method, Role, Sampling, ToClient
from protocols.zeromq import ZmqNetwork

if TYPE_CHECKING:
    from soak import Soak

METHODS = [method.value for method in Method if method is not Method.REST]  # which needs a datastore
TOKENS = 80  # of every answer
BACK_S = 180.0  # for whatever was killed to come back: a verifier takes over a minute where the CPUs are overloaded
UNREAD_S = 12.0  # longer than a client lets chunks lie before it suspends their stream
CANCELS = 10


class Troubles:
    def __init__(self, soak: Soak, process: subprocess.Popen[str], chance: random.Random, log: TextIO) -> None:
        self.soak, self.process, self.chance, self.log = soak, process, chance, log
        self.stopped = 0  # actors that do nothing at present
        self.hired: list[subprocess.Popen[bytes]] = []
        self.beside: set[asyncio.Task[None]] = set()  # what takes long, and is no reason to wait

    # --- processes ---------------------------------------------------------------------------------------------------

    def pids(self) -> dict[str, list[int]]:
        """Of the actors that are alive, by role."""
        hired = [process.pid for process in self.hired if process.poll() is None]
        found: dict[str, list[int]] = {"drafter": hired} if hired else {}
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        for pid in map(int, children.stdout.split()):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                role = next((w.decode() for w in words if w in (b"verifier", b"drafter", b"controller")), "")
                if role:
                    found.setdefault(role, []).append(pid)
        return found

    def resident_mb(self) -> dict[str, float]:
        """The largest process of each role, and this one. A hired drafter is no fork: it holds 0.1 GB more."""
        hired = {process.pid for process in self.hired}
        found: dict[str, float] = {}
        for role, pids in self.pids().items():
            for pid in pids:
                name = f"hired {role}" if pid in hired else role
                found[name] = max(found.get(name, 0.0), _resident_mb(pid))
        return {**found, "client": _resident_mb(os.getpid())}

    async def kill(self, role: str) -> bool:
        """Whether there was one."""
        if pids := self.pids().get(role):
            os.kill(pid := self.chance.choice(pids), signal.SIGKILL)
            self.soak.found.done[f"a {role} killed"] += 1
            if pid in [process.pid for process in self.hired]:
                self.hire()  # nobody else starts it again
            return True
        return False

    async def kill_and_time(self) -> None:
        """A drafter dies; see :class:`soak_returns.Return` for what is measured of its successor."""
        async with self.soak.client() as client:
            before = {drafter.pid for drafter in (await client.status()).drafters}
            if not await self.kill("drafter"):
                return
            back = Return(before)
            until = time.monotonic() + BACK_S
            while not back.over and time.monotonic() < until:
                stopped = self.stopped > 0
                status = await client.status()
                back.see(status, time.monotonic(), stopped or self.stopped > 0)
                await asyncio.sleep(LOOK_S)
            self.soak.found.returns.append(back)

    async def freeze(self, role: str) -> None:
        """Stopped for less, or for more, than the time to live."""
        if pids := self.pids().get(role):
            pid = self.chance.choice(pids)
            os.kill(pid, signal.SIGSTOP)
            self.stopped += 1
            await asyncio.sleep(self.chance.choice([0.3, 1.0, 4.0]))
            self.stopped -= 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # --- an operator -------------------------------------------------------------------------------------------------

    async def swap(self) -> None:
        async with self.soak.client() as client:
            names = [drafter.actor_id for drafter in (await client.status()).drafters]
            if len(names) > 1:
                await client.swap(*self.chance.sample(names, 2))

    async def drain(self) -> None:
        async with self.soak.client() as client:
            if names := [drafter.actor_id for drafter in (await client.status()).drafters]:
                await client.drain(self.chance.choice(names))
                self.hire()

    def hire(self) -> None:
        """A drafter that was drained stays away, as asked: its successor is started by hand."""
        flags = ["--connect", self.soak.address, "--actor-id", f"successor-{len(self.hired)}"]
        self.hired.append(subprocess.Popen([sys.executable, "-m", "duoactor", "drafter", *flags], stderr=self.log))

    # --- clients -----------------------------------------------------------------------------------------------------

    async def cancels(self) -> None:
        """Streams that are cancelled before, with or soon after their first chunk."""
        async with self.soak.client() as client:
            for _ in range(CANCELS):
                job = self.chance.choice(self.soak.jobs)
                async with client.stream(job.prompt, **job.options) as stream:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self.chance.choice((0.0, 0.02, 0.1))):
                            await anext(stream)

    async def slow_reader(self) -> None:
        """It reads a few tokens, nothing for a long while, and then the rest, of which none may be missing."""
        job, ids = self.chance.choice(self.soak.jobs), []
        async with self.soak.client() as client, client.stream(job.prompt, **job.options) as stream:
            async for chunk in stream:
                if not ids:
                    await asyncio.sleep(UNREAD_S)
                ids += chunk.token_ids
        self.soak.compare(ids, job, "a slow reader", whole=True)

    async def again(self) -> None:
        """The same live request id several times from one peer, each time with the tokens so far; then it vanishes."""
        job, method = self.chance.choice(self.soak.jobs), self.chance.choice(METHODS)
        rid = f"again-{self.chance.random()}"
        decoder = wire.Decoder(ToClient)
        network = ZmqNetwork(None)
        link = network.connect(self.soak.address)
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
            self.soak.compare(ids, job, f"{method}, the same id again")
            network.close()

    async def nonsense(self) -> None:
        network = ZmqNetwork(None)
        link = network.connect(self.soak.address)
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

    # --- all of it ---------------------------------------------------------------------------------------------------

    async def run(self, until: Callable[[], bool]) -> None:
        kinds: list[tuple[str, float, Callable[[], Awaitable[object]]]] = [
            ("kill -9 of a drafter", 3, lambda: self.kill("drafter")),
            ("kill -9 of a drafter, and its return", 1, lambda: self._beside(self.kill_and_time())),
            ("kill -9 of the controller", 1, lambda: self.kill("controller")),
            ("kill -9 of the verifier", 0.3, lambda: self.kill("verifier")),
            ("a drafter stopped for a while", 2, lambda: self.freeze("drafter")),
            ("the controller stopped for a while", 0.5, lambda: self.freeze("controller")),
            ("the verifier stopped for a while", 0.5, lambda: self.freeze("verifier")),
            ("swap", 4, self.swap),
            ("drain", 1, self.drain),
            (f"{CANCELS} streams cancelled", 3, self.cancels),
            ("a slow reader", 2, lambda: self._beside(self.slow_reader())),
            ("the same request id again", 3, self.again),
            ("nonsense", 2, self.nonsense),
        ]
        while not until():
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))
            what, _, do = self.chance.choices(kinds, [weight for _, weight, _ in kinds])[0]
            try:
                await do()
                self.soak.found.done[what] += 1
            except DuoactorError as error:
                self.soak.found.done[f"{what} ({type(error).__name__})"] += 1
        await asyncio.gather(*self.beside)

    async def _beside(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except DuoactorError as error:
                self.soak.found.failed[f"{type(error).__name__}: {error}"[:200]] += 1

        task = asyncio.create_task(guarded())
        self.beside.add(task)
        task.add_done_callback(self.beside.discard)


def _resident_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6
    except OSError:  # it has just ended
        return 0.0
