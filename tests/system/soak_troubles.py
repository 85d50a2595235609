"""What is done to the system during a soak: see ``soak.py``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from duoactor import DuoactorError
from protocols import wire
from protocols.messages import Chunk, Failed, Generate, Hello, Method, Role, Sampling, ToClient
from protocols.zeromq import ZmqNetwork
from tests.system.soak_returns import BACK_S, LOOK_S, Return
from tests.world.wall_clocks import DAY, HOUR, WallClocks

if TYPE_CHECKING:
    from tests.system.soak import Soak

METHODS = [method.value for method in Method if method is not Method.REST]  # REST needs a datastore
TOKENS = 80  # length of every answer
UNREAD_S = 12.0
CANCELS = 10
JUMPS = (0, 60, -60, 5 * HOUR, -7 * HOUR, 4000 * DAY, -9000 * DAY)  # ahead of the machine's wall clock, or behind


@dataclass(frozen=True)
class Up:
    """`duoactor up`, and what further actors are started with."""

    process: subprocess.Popen[bytes]
    command: list[str]
    environment: dict[str, str]
    log: TextIO
    clocks: WallClocks


class Troubles:
    def __init__(self, soak: Soak, up: Up, chance: random.Random, spared: Container[str]) -> None:
        """``spared``: roles that are not killed."""
        self.soak, self.up, self.chance, self.spared = soak, up, chance, spared
        self.stopped = 0  # actors that do nothing at present
        self.hired: list[subprocess.Popen[bytes]] = []
        self.beside: set[asyncio.Task[None]] = set()  # what takes long, and is no reason to wait

    # --- processes ---------------------------------------------------------------------------------------------------

    def pids(self) -> dict[str, list[int]]:
        """Processes of the actors that are alive, by role."""
        hired = [process.pid for process in self.hired if process.poll() is None]
        found: dict[str, list[int]] = {"drafter": hired} if hired else {}
        line = ["pgrep", "-P", str(self.up.process.pid)]
        children = subprocess.run(line, capture_output=True, text=True, check=False)
        for pid in map(int, children.stdout.split()):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                role = next((w.decode() for w in words if w in (b"verifier", b"drafter", b"controller")), "")
                if role:
                    found.setdefault(role, []).append(pid)
        return found

    def resident_mb(self) -> dict[tuple[str, int], float]:
        """Memory of every process, and this one."""
        hired = {process.pid for process in self.hired}
        found = {("client", os.getpid()): _resident_mb(os.getpid())}
        for role, pids in (self.pids() | {"supervisor": [self.up.process.pid]}).items():
            for pid in pids:
                found[f"hired {role}" if pid in hired else role, pid] = _resident_mb(pid)
        return found

    async def kill(self, role: str, every: bool = False) -> bool:
        """One of them, or all. Whether there was one."""
        pids = [] if role in self.spared else self.pids().get(role, [])
        for pid in pids if every else self.chance.sample(pids, min(1, len(pids))):
            os.kill(pid, signal.SIGKILL)
            self.soak.found.done[f"a {role} killed"] += 1
            if pid in [process.pid for process in self.hired]:
                self.hire()  # nobody else starts it again
        return bool(pids)

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

    async def freeze(self, role: str, every: bool = False) -> None:
        """Stopped for less or for more than the time to live."""
        pids = self.pids().get(role, [])
        chosen = pids if every else self.chance.sample(pids, min(1, len(pids)))
        for pid in chosen:
            os.kill(pid, signal.SIGSTOP)
        self.stopped += len(chosen)
        await asyncio.sleep(self.chance.choice([0.3, 1.0, 4.0]))
        self.stopped -= len(chosen)
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def jump(self) -> None:
        """The wall clock of every process, or of one alone as on another host."""
        pids = self.pids() | {"supervisor": [self.up.process.pid]}
        all_of_them = [(role, pid) for role, some in pids.items() for pid in some]
        ahead = self.chance.choice(JUMPS)
        for role, pid in self.chance.choice(([self.chance.choice(all_of_them)], all_of_them)):
            self.up.clocks.move(pid, ahead)
            with contextlib.suppress(OSError):  # it has just ended
                self.soak.found.done[f"the wall clock of a {role} jumped"] += self.up.clocks.reaches(pid)

    # --- an operator -------------------------------------------------------------------------------------------------

    async def swap(self) -> None:
        async with self.soak.client() as client:
            names = [drafter.actor_id for drafter in (await client.status()).drafters]
            if len(names) > 1:
                await client.swap(*self.chance.sample(names, 2))

    async def drain(self) -> None:
        async with self.soak.client() as client:
            if names := [one.actor_id for one in (await client.status()).drafters if one.state != "draining"]:
                await client.drain(self.chance.choice(names))
                self.hire()

    def hire(self) -> None:
        """A drafter that was drained stays away, as asked: its successor is started by hand."""
        flags = ["--connect", self.soak.address, "--actor-id", f"successor-{len(self.hired)}"]
        line = [*self.up.command, "drafter", *flags]
        self.hired.append(subprocess.Popen(line, stderr=self.up.log, env=self.up.environment))

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
            ("wall clocks jump", 2, self.jump),
            ("all drafters killed", 0.3, lambda: self.kill("drafter", every=True)),
            ("all drafters stopped for a while", 0.3, lambda: self.freeze("drafter", every=True)),
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
                if await do() is not False:
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
