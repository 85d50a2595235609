"""One drafter alone with a verifier that says what a test wants it to say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from actors.drafter.loop import Drafter
from actors.models import Expansion, Leaf
from protocols import wire
from protocols.messages import (
    Close,
    Grow,
    Heartbeat,
    Hello,
    Message,
    Open,
    Plan,
    Refuse,
    RefuseCode,
    Role,
    Sampling,
    ToVerifier,
    Verdict,
    Welcome,
)
from tests.world.actors import drafter_line
from tests.world.clock import run
from tests.world.models import INFO, Broken, ToyDraft
from tests.world.network import MemoryNetwork

ADDRESS = "memory://desk"
HEARTBEAT_MS, TTL_MS = 500, 2500

T = TypeVar("T", bound=Message)


class Reader(ToyDraft):
    """A toy draft that has to read its texts, and fails when it is asked to."""

    def __post_init__(self) -> None:
        self.reads = True
        super().__post_init__()
        self.broken: set[int] = set()  # first tokens of texts for which every forward fails
        self.batches: list[list[int]] = []  # handles in each forward

    def prefill(self, handle: int, limit: int) -> None:
        self._check(handle)
        super().prefill(handle, limit)

    def expand(self, leaves: Sequence[Leaf]) -> list[Expansion]:
        self.batches.append([leaf.handle for leaf in leaves])
        for leaf in leaves:
            self._check(leaf.handle)
        return super().expand(leaves)

    def _check(self, handle: int) -> None:
        if self.contexts[handle][0][0] in self.broken:
            raise Broken("the toy draft broke, as asked")


class Desk:
    """``async with Desk() as desk``: the drafter has said Hello and is welcome."""

    def __init__(self, model: ToyDraft | None = None, vocab_size: int = INFO.vocab_size) -> None:
        self.network = MemoryNetwork()
        self.model = model or Reader()
        self.vocab_size = vocab_size
        self.listener = self.network.listen(ADDRESS)
        self.decoder = wire.Decoder(ToVerifier)
        self.seen: list[Message] = []  # all but heartbeats
        self.incarnations = 0

    async def __aenter__(self) -> Desk:
        hello = Hello(Role.DRAFTER, "d", "1", "toy", INFO.vocab_size, INFO.tokenizer_digest)
        line = drafter_line(self.network.host("d"), hello, ADDRESS)
        self.drafter = Drafter(self.model, line, {1: 100.0, 8: 300.0}, timer=lambda: 0.0)
        self.stop = asyncio.Event()
        self.running = asyncio.create_task(self.drafter.run(self.stop))
        self.reading = asyncio.create_task(self._read())
        await self.settle()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop.set()
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)
        if not self.running.done():
            await self.running

    async def _read(self) -> None:
        while True:
            self.peer, frames = await self.listener.receive()
            message = self.decoder.decode(frames)
            match message:
                case Hello():
                    self.incarnations += 1
                    self.send(Welcome(f"v{self.incarnations}", HEARTBEAT_MS, TTL_MS, "", vocab_size=self.vocab_size))
                case Heartbeat():
                    self.send(message)
                case _:
                    self.seen.append(message)

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.listener.send(self.peer, wire.encode(message))

    async def settle(self, seconds: float = 0.1) -> None:
        """Until nothing is left to be done."""
        await asyncio.sleep(seconds)

    def forget(self, *then: Message) -> None:
        """As a verifier that has restarted, with the leases that it gives next in the same breath."""
        self.send(Refuse(RefuseCode.UNKNOWN_PEER, "say Hello first"), *then)

    # --- what tests say ----------------------------------------------------------------------------------------------

    def open(
        self, rid: str, prefix: Sequence[int], epoch: int = 1, plan: Plan | None = None, salt: str = "", **sampling
    ) -> None:
        sampling = Sampling(**{"max_tokens": 64, **sampling})
        self.send(Open(rid, epoch, tuple(prefix), len(prefix), sampling, plan or Plan("pearl", 4), salt))

    def verdict(self, rid: str, base_len: int, *tokens: int, epoch: int = 1, number: int = 1, **more) -> None:
        self.send(Verdict(rid, epoch, number, base_len, tokens, **more))

    def close(self, rid: str, epoch: int = 1) -> None:
        self.send(Close(rid, epoch))

    # --- what tests see ----------------------------------------------------------------------------------------------

    def take(self, kind: type[T]) -> list[T]:
        """The messages of a kind that have come since the last call."""
        found = [message for message in self.seen if isinstance(message, kind)]
        self.seen = [message for message in self.seen if not isinstance(message, kind)]
        return found

    def drafted(self, rid: str) -> list[int]:
        """Every token that was drafted for a request since the last call, in order of arrival."""
        mine = [message for message in self.seen if isinstance(message, Grow) and message.rid == rid]
        self.seen = [message for message in self.seen if message not in mine]
        return [token for grow in mine for token in grow.tokens]


def played(story, model=None, **options):
    async def play():
        async with Desk(model, **options) as desk:
            await story(desk)

    run(play())
