"""A client of the gateway that sends what comes to its mind: raw bytes, requests that are none, bodies that are cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.decoders import targets
from tests.world.garbage import mutated

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "anthropic count": "/v1/messages/count_tokens",
}
LINES = (b"GET / HTTP/9.9", b"\x16\x03\x01\x02\x00", b"GET", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5")
FAILED = b"the gateway failed"  # with status 500, which a hostile verifier's own failures have as well
TOGETHER = 20  # requests on one connection
CONNECTIONS = 16  # at once, since most of them only wait for answers that never come
KNOCK_S = 0.05
SLOW = 50  # connections whose headers never end
QUIET_S = 0.25  # without an answer, after which the connection is cut: a hostile verifier may owe it for ever


class HostileHttp:
    def __init__(self, port: int, seed: int, directory: Path) -> None:
        """``directory`` for files that seeds are read from."""
        self.port = port
        self.chance = random.Random(seed)
        self.seeds = {PATHS[name]: target.seeds for name, target in targets(directory).items() if name in PATHS}
        self.sent = 0
        self.answers: Counter[str] = Counter()  # by status
        self.failures: list[str] = []  # answers that tell of an exception in the gateway
        self._slow: list[asyncio.StreamWriter] = []

    async def rave(self, count: int, over: Callable[[], bool] = lambda: False) -> int:
        """Send so many requests, or what is none, unless it is ``over`` before; return how many."""
        began = self.sent
        await asyncio.gather(*(self._connections(began + count, over) for _ in range(CONNECTIONS)))
        for writer in self._slow:
            writer.close()
        self._slow.clear()
        return self.sent - began

    async def knock(self) -> None:
        """Ask how it is, again and again; the answers are nobody's."""
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                await asyncio.sleep(KNOCK_S)
                writer.close()
            await asyncio.sleep(KNOCK_S)

    async def _connections(self, until: int, over: Callable[[], bool]) -> None:
        """One after the other."""
        while (left := until - self.sent) > 0 and not over():
            slow = len(self._slow) < SLOW and self.chance.random() < 0.1
            requests = 1 if slow else min(TOGETHER, left)
            self.sent += requests
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:  # it may not listen yet
                self.sent -= requests
                await self._broken()
                continue
            if slow:
                writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
                self._slow.append(writer)
                continue
            try:
                await self._ask(reader, writer, requests)
            except OSError:
                await self._broken()
            finally:
                writer.close()

    async def _broken(self) -> None:
        self.answers["connection broken"] += 1
        await asyncio.sleep(QUIET_S)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: int) -> None:
        writer.write(b"".join(self._request() for _ in range(requests)))
        answered = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S) as quiet:
                while answered < requests and (data := await reader.read(1 << 16)):
                    if FAILED in data:
                        self.failures.append(data.decode(errors="replace"))
                    for status in (piece[:3] for piece in data.split(b"HTTP/1.1 ")[1:]):
                        self.answers[status.decode(errors="replace")] += 1
                        answered += 1
                    quiet.reschedule(asyncio.get_running_loop().time() + QUIET_S)

    def _request(self) -> bytes:
        luck = self.chance.random()
        if luck < 0.02:
            return self.chance.randbytes(self.chance.randrange(200))
        if luck < 0.04:
            return self.chance.choice(LINES) + b"\r\n\r\n"
        path, seeds = self.chance.choice(list(self.seeds.items()))
        body = self.chance.choice(list(seeds))
        if self.chance.random() < 0.95:
            body = mutated(body, self.chance)
        length = len(body) if self.chance.random() < 0.98 else self.chance.choice((0, len(body) + 9, 1 << 62))
        kind = "application/json" if self.chance.random() < 0.98 else "text/plain"
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode()
        return (mutated(head, self.chance) if self.chance.random() < 0.02 else head) + body
