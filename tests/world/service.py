"""``duoactor up`` with the bundled pair, whose texts are compared with what ``vanilla`` said in peace."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from duoactor import AsyncClient, DuoactorError
from protocols.messages import StatusReport
from tests.world.processes import WAIT_S, Up

WANTED = {"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0.0, "ignore_eos": True}
METHODS = ("auto", "pearl", "tree", "duodecoding", "vanilla", "sps")


@dataclass
class Process:
    """``log``: what it prints."""

    pid: int
    log: Path

    def __post_init__(self) -> None:
        self.began = self._began()

    def _began(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        except OSError:
            return ""

    @property
    def alive(self) -> bool:
        return bool(self.began) and self._began() == self.began

    def held(self) -> tuple[float, int]:
        """Megabytes of memory, and open files."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4096 / 1e6, len(os.listdir(f"/proc/{self.pid}/fd"))


class Service:
    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.up = Up(directory)
        self.chance = random.Random(seed)
        self.faults: list[str] = []  # what was found
        self.texts = 0  # texts that were compared
        self.truth: tuple[int, ...] = ()
        self.text = ""
        self.vocab_size = 0

    def client(self) -> AsyncClient:
        return AsyncClient(self.up.address, timeout=WAIT_S, reconnect_timeout=WAIT_S, max_retries=100)

    async def learn(self) -> None:
        async with self.client() as client:
            told = await client.generate(**WANTED, method="vanilla")
            self.vocab_size = client.welcome.vocab_size
        self.truth, self.text = told.token_ids, told.text

    async def stream(self) -> None:
        async with self.client() as client:
            while True:
                await self.compare(client, self.chance.choice(METHODS))

    async def compare(self, client: AsyncClient, method: str) -> None:
        try:
            told = await client.generate(**WANTED, method=method)
        except DuoactorError as error:
            self.faults.append(f"a stream of {method} ended with {type(error).__name__}: {error}")
            await asyncio.sleep(1.0)
            return
        self.texts += 1
        if told.token_ids != self.truth:
            self.faults.append(f"a text of {method} differs: {told.token_ids}")

    async def until(self, condition: Callable[[StatusReport], object], what: str) -> None:
        """Polls the verifier's status."""
        end = time.monotonic() + WAIT_S
        async with self.client() as client:
            while not condition(await client.status()):
                if time.monotonic() > end:
                    self.faults.append(f"waited in vain for {what}")
                    return
                await asyncio.sleep(0.1)
