"""Hostile frames at live actors over real sockets: by hand, ``python -m tests.system.hostile_frames 1000000``.

Starts ``duoactor up`` with the bundled pair. Its verifier gets frames from strangers, clients, drafters and
controllers; a further drafter, a controller, a gateway and a Python client get them from a hostile verifier, and the
gateway over HTTP too. Four in ten are no message: bits changed, ends cut off, huge counts, other numbers of frames,
random bytes. The rest can be decoded, at the edge of their limits and often about what is live. A stream goes on at the
verifier all the time, and its texts are compared.

After each role: the process is the same, has said no traceback, holds little more memory and files than after a
tenth of the frames, and serves the known text; at the verifier nothing is left. Prints a line for each role, and on
stderr how far it is; the exit code is 1 if something was found. A million frames need not be sent in one run:
``--minutes`` ends each role in time, and another ``--seed`` sends others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx2

from protocols.messages import ActorStatus, Goodbye, Role
from protocols.zeromq import ZmqNetwork
from tests.serve.hostile_http import HostileHttp
from tests.world.impostor import Impostor
from tests.world.models import INFO
from tests.world.processes import WAIT_S, command, free_port
from tests.world.service import WANTED, Process, Service
from tests.world.siege import Over, Part, Siege
from tests.world.wild import There, Wild
from tools.speedups.relay import Relay

ROOT = Path(__file__).parents[2]

PAIR = ROOT / "duoactor" / "pair"
# Of one connection to the verifier. It reads some 130 messages of a peer that is no client before it drops the rest
# unread (actors/verifier/floods.py; what floods cost is measured by flood.py).
TOGETHER = 120


def pid_of(actor: ActorStatus | None) -> int:
    return actor.pid if actor is not None else 0


class Attack(Service):
    def __init__(self, directory: Path, seed: int, limit_s: float) -> None:
        super().__init__(directory, seed)
        self.seed, self.limit_s = seed, limit_s
        self.started: list[subprocess.Popen[bytes]] = []

    async def prepare(self) -> None:
        """The text, and what a drafter must say of its tokens."""
        from transformers import AutoTokenizer

        from actors.engines.text.tokenizer import tokenizer_digest

        await self.learn()
        digest = tokenizer_digest(AutoTokenizer.from_pretrained(PAIR / "target"))
        self.info = replace(INFO, vocab_size=self.vocab_size, tokenizer_digest=digest)

    # --- the roles ---------------------------------------------------------------------------------------------------

    async def verifier(self, frames: int) -> None:
        process = Process(self.up.pid("verifier"), self.directory / "up.log")
        async with self.client() as client:
            before = await client.status()
        controller = self.up.pid("controller")

        guises = itertools.cycle((None, Role.CLIENT, Role.DRAFTER, Role.CONTROLLER))  # None: it never says Hello

        async def part(count: int, over: Over) -> int:
            role, sent = next(guises), 0
            while sent < count and not over():
                sent += await self.peer(role, min(TOGETHER, count - sent))
            return sent

        os.kill(controller, signal.SIGSTOP)  # a verifier has one: the honest one is put aside
        try:
            await self.role("verifier", process, frames, part)
        finally:
            os.kill(controller, signal.SIGCONT)
        names = {drafter.actor_id for drafter in before.drafters}
        await self.until(
            lambda now: (
                {d.actor_id for d in now.drafters} == names
                and now.controller is not None
                and now.controller.pid == controller
            ),
            "the verifier to have its own drafter and controller, and no others",
        )
        async with self.client() as client:
            counted = (await client.status()).counters
        new = {name: count - before.counters.get(name, 0) for name, count in sorted(counted.items())}
        print("    the verifier counted", {name: count for name, count in new.items() if count}, flush=True)

    async def peer(self, role: Role | None, frames: int) -> int:
        """One connection, which leaves with a word or without."""
        network = ZmqNetwork()
        try:
            peer = Wild(There(network, self.up.address), role, self.chance.getrandbits(64), self.info)
            await peer.link.writable()
            peer.greet()
            for _ in range(0, frames, 40):
                peer.rave(40)
                await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.02)))  # some of it after what it was lent
                peer.listen()
            if self.chance.random() < 0.75:
                peer.send(Goodbye())
            return peer.sent
        finally:
            network.close()

    async def drafter(self, frames: int) -> None:
        async with self.behind(Role.DRAFTER, "drafter", "--actor-id", "subject") as (process, impostor, honest):
            if not await self.role("drafter", process, frames, impostor.rave):
                return
            async with honest(), self.client() as client:
                await self.until(lambda now: "subject" in [d.actor_id for d in now.drafters], "the drafter")
                [own] = [d.actor_id for d in (await client.status()).drafters if d.actor_id != "subject"]
                await client.swap(own, "subject")
                await self.compare(client, "pearl")
                drafts = {d.actor_id: d.accepted for d in (await client.status()).drafters}
                if not drafts.get("subject"):
                    self.faults.append("the drafter drafts nothing any more")
                await client.swap("subject", own)

    async def controller(self, frames: int) -> None:
        async with self.behind(Role.CONTROLLER, "controller") as (process, impostor, honest):
            if not await self.role("controller", process, frames, impostor.rave):
                return
            own = self.up.pid("controller")
            os.kill(own, signal.SIGSTOP)
            try:
                async with honest(), self.client() as client:
                    await self.until(lambda now: pid_of(now.controller) == process.pid, "the controller")
                    for _ in range(3):  # rounds to command something by
                        await self.compare(client, "pearl")
                    await self.until(lambda now: now.budgets, "a command of the controller")
            finally:
                os.kill(own, signal.SIGCONT)

    async def gateway(self, frames: int) -> None:
        port = free_port()
        async with self.behind(Role.CLIENT, "serve", "--http", f"127.0.0.1:{port}") as (process, impostor, honest):
            http = HostileHttp(port, self.seed, self.directory)

            async def part(count: int, over: Over) -> int:
                done = await asyncio.gather(impostor.rave(count - count // 5, over), http.rave(count // 5, over))
                return sum(done)

            knocking = asyncio.create_task(http.knock())  # a client that was refused connects anew when it is asked
            try:
                if not await self.role("gateway", process, frames, part):
                    return
            finally:
                knocking.cancel()
            print(f"    {http.sent:,} of them over HTTP; answers: {dict(http.answers.most_common())}", flush=True)
            self.faults += [f"an exception in the gateway: {told}" for told in http.failures]
            async with honest(), httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as client:
                text = ""
                for _ in range(WAIT_S):
                    answer = await client.post("/v1/completions", json=WANTED)
                    if answer.status_code == 200:
                        text = answer.json()["choices"][0]["text"]
                        break
                    await asyncio.sleep(1.0)  # it says that its verifier is not there
                if text != self.text:
                    self.faults.append(f"the gateway's text differs: {answer.status_code} {text!r}")

    async def python_client(self, frames: int) -> None:
        async with self.behind(Role.CLIENT, "client") as (process, impostor, honest):
            if not await self.role("client", process, frames, impostor.rave):
                return
            child = self.started[-1]
            assert child.stdin and child.stdout
            async with honest():
                child.stdin.close()
                told = await asyncio.to_thread(child.stdout.readline)
                if not told or tuple(json.loads(told)) != self.truth:
                    self.faults.append(f"the client's text differs: {told!r}")

    # --- what is common to them --------------------------------------------------------------------------------------

    async def role(self, name: str, process: Process, frames: int, part: Part) -> bool:
        """Send, look at the process, and see that nothing is left at the verifier. Whether it lives."""
        siege = Siege(name, process, frames, self.limit_s)
        stream = asyncio.create_task(self.stream())
        texts = self.texts
        try:
            await siege.run(part)
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
        texts = self.texts - texts
        siege.judge(texts)
        self.faults += siege.faults
        print(siege.line(texts), flush=True)
        await self.until(lambda now: not now.requests and not any(d.leases for d in now.drafters), "requests to end")
        return process.alive and siege.sent > 0

    @contextlib.asynccontextmanager
    async def behind(self, role: Role, *words: str):
        """An actor that is connected to a hostile verifier; ``honest`` puts the good one in its place."""
        network = ZmqNetwork()
        impostor = Impostor(network, role, self.seed)
        address = f"tcp://127.0.0.1:{impostor.port}"
        log = self.directory / f"{words[0]}.log"
        line = command(*words, "--connect", address)
        if words[0] == "client":
            line = [sys.executable, "-m", "tests.world.hostile_client", address, json.dumps(WANTED)]
        with log.open("w") as file:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} if words[0] == "client" else {}
            child = await asyncio.to_thread(subprocess.Popen, line, stderr=file, cwd=ROOT, **{"stdout": file, **pipes})
        self.started.append(child)

        @contextlib.asynccontextmanager
        async def honest():
            network.close()  # waits until the port is free
            async with Relay(self.up.address.removeprefix("ipc://"), port=impostor.port):
                yield
                child.terminate()
                await asyncio.to_thread(child.wait, WAIT_S)

        try:
            yield Process(child.pid, log), impostor, honest
        finally:
            child.kill()
            network.close()

    def end(self) -> None:
        for child in self.started:
            child.kill()
            child.wait()
        if self.up.stop() != 0:
            self.faults.append("`duoactor up` did not end well")


ROLES = {
    "verifier": Attack.verifier,
    "drafter": Attack.drafter,
    "controller": Attack.controller,
    "client": Attack.python_client,
    "gateway": Attack.gateway,
}


async def attack(
    directory: Path, frames: int, seed: int = 0, roles: Sequence[str] = tuple(ROLES), limit_s: float = math.inf
) -> list[str]:
    """Returns what was found. ``limit_s``: seconds for each role, after which fewer frames must do."""
    one = await asyncio.to_thread(Attack, directory, seed, limit_s)
    try:
        await one.prepare()
        for role in roles:
            await ROLES[role](one, frames)
        return one.faults
    finally:
        await asyncio.to_thread(one.end)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("frames", type=int, nargs="?", default=1_000_000, help="for each role")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--roles", default=",".join(ROLES))
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each role, at most")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        faults = asyncio.run(
            attack(Path(directory), options.frames, options.seed, options.roles.split(","), 60 * options.minutes)
        )
    print("\n".join(faults) or "nothing was found")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
