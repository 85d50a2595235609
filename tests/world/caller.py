"""Peers without comfort: they see every message, and do nothing by themselves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from protocols import wire
from protocols.messages import (
    Chunk,
    Failed,
    Generate,
    Heartbeat,
    Hello,
    Message,
    Refuse,
    Role,
    Sampling,
    ToClient,
    ToDrafter,
    Welcome,
)
from tests.world.models import INFO

ADDRESS = "memory://verifier"


class Caller:
    """A client without comfort: it sees every message."""

    names = itertools.count()

    def __init__(self, network, name: str = "") -> None:
        self.name = name or f"client-{next(self.names)}"
        self.link = network.host(self.name).connect(ADDRESS)
        self.decoder = wire.Decoder(ToClient)
        self.seen: list[Message] = []

    def send(self, message: Message) -> None:
        self.link.send(wire.encode(message))

    async def hello(self, **fields) -> Message:
        self.send(Hello(**{"role": Role.CLIENT, "actor_id": self.name, "incarnation": "1", **fields}))
        return await self.until(lambda m: isinstance(m, (Welcome, Refuse)))

    async def next(self) -> Message:
        message = self.decoder.decode(await self.link.receive())
        self.seen.append(message)
        return message

    async def until(self, wanted) -> Message:
        while not wanted(message := await self.next()):
            pass
        return message

    async def collect(self, *rids: str) -> dict[str, list[Chunk]]:
        """Chunks of each request until all have ended; a Failed is raised."""
        chunks: dict[str, list[Chunk]] = {rid: [] for rid in rids}
        open_rids = set(rids)
        while open_rids:
            message = await self.next()
            if isinstance(message, Chunk) and message.rid in chunks:
                chunks[message.rid].append(message)
                if message.finish_reason is not None:
                    open_rids.discard(message.rid)
            elif isinstance(message, Failed) and message.rid in chunks:
                raise AssertionError(f"{message.code}: {message.detail}")
        return chunks

    async def generate(self, prompt: Sequence[int], sampling: Sampling, method: str = "", **fields) -> list[Chunk]:
        rid = f"{self.name}-{len(self.seen)}"
        self.send(Generate(rid, tuple(prompt), sampling=sampling, method=method, **fields))
        return (await self.collect(rid))[rid]

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.send(Heartbeat())


class DrafterByHand(Caller):
    """A drafter that does nothing by itself."""

    def __init__(self, network, name: str) -> None:
        super().__init__(network, name)
        self.decoder = wire.Decoder(ToDrafter)

    async def hello(self, **fields):
        digest = {"tokenizer_digest": INFO.tokenizer_digest, "vocab_size": INFO.vocab_size}
        return await super().hello(**{"role": Role.DRAFTER, "model_id": "by-hand", **digest, **fields})


def tokens_of(chunks: Sequence[Chunk]) -> list[int]:
    assert [c.offset for c in chunks] == list(itertools.accumulate([0, *(len(c.token_ids) for c in chunks[:-1])]))
    return [t for c in chunks for t in c.token_ids]
