"""A peer's line to the verifier."""

from __future__ import annotations

import asyncio

from protocols import wire
from protocols.errors import ConnectionLost, ProtocolError, RefusedError
from protocols.messages import Goodbye, Heartbeat, Hello, Message, Refuse, RefuseCode, Welcome
from protocols.transport import Link, Network


class Line:
    """A peer's line to the verifier: Hello, heartbeats, and noticing that the verifier is gone or new.

    ``next()`` gives the messages that the peer itself must handle, and ``None`` whenever the verifier has lost its
    memory of this peer (it restarted, or was silent for too long): everything that was leased is void then.
    """

    def __init__(self, network: Network, address: str, hello: Hello, decoder: wire.Decoder) -> None:
        self.address = address
        self.hello = hello
        self.decoder = decoder
        self.link: Link = network.connect(address)
        self.loop = asyncio.get_running_loop()
        self.welcome: Welcome | None = None
        self.heard_at = self.loop.time()
        self.malformed = 0
        self.busy_ms = 0.0
        self.lost = False

    async def open(self, timeout: float | None = None) -> Welcome:
        """Say Hello and wait for Welcome: for ever, since a verifier may be loading its model, or ``timeout`` seconds.

        Raises RefusedError with the verifier's sentence, or ConnectionLost.
        """
        greeting = asyncio.create_task(self._greet_until_welcome())
        waiting = asyncio.create_task(self._await_welcome())
        try:
            done, _ = await asyncio.wait([waiting, greeting], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if greeting in done:
                greeting.result()
            if waiting not in done:
                raise ConnectionLost(f"no verifier answers at {self.address}; start one with `duoactor up`")
            return waiting.result()
        finally:
            greeting.cancel()
            waiting.cancel()

    def _greet(self) -> None:
        self.link.send(wire.encode(self.hello))

    async def _greet_until_welcome(self) -> None:
        while True:
            await self.link.writable()
            self._greet()
            await asyncio.sleep(1.0)

    async def _await_welcome(self) -> Welcome:
        while self.welcome is None:
            self._decode(await self.link.receive())
        return self.welcome

    def _decode(self, frames: list[bytes]) -> Message | None:
        """A message for the peer; None for what the line itself deals with."""
        try:
            message: Message = self.decoder.decode(frames)
        except ProtocolError:
            self.malformed += 1
            return None
        self.heard_at = self.loop.time()
        match message:
            case Welcome():
                self.welcome = message
                return None
            case Heartbeat():
                return None
            case Refuse(code=RefuseCode.UNKNOWN_PEER):
                self.lost = True
                self._greet()
                return None
            case Refuse(code=RefuseCode.DUPLICATE) if self.welcome is not None:
                return None  # our own repeated Hello
            case Refuse():
                raise RefusedError(message.code, message.detail)
        return message

    async def next(self) -> Message | None:
        while True:
            message = self._decode(await self.link.receive())
            if message is not None or self.forgotten():
                return message

    def next_nowait(self) -> Message | None:
        while (frames := self.link.receive_nowait()) is not None:
            message = self._decode(frames)
            if message is not None:
                return message
        return None

    def forgotten(self) -> bool:
        """Whether the verifier has forgotten this peer since the last call."""
        lost, self.lost = self.lost, False
        return lost

    def send(self, message: Message) -> bool:
        return self.link.send(wire.encode(message))

    async def beat(self) -> None:
        """Heartbeats, for ever. After a long silence the verifier's memory of us is taken to be void."""
        seq = 0
        while True:
            assert self.welcome is not None
            await asyncio.sleep(self.welcome.heartbeat_ms / 1000)
            seq += 1
            self.send(Heartbeat(self.hello.incarnation, seq, self.busy_ms))
            if self.loop.time() - self.heard_at > self.welcome.ttl_ms / 1000 and not self.lost:
                self.lost = True
                self.heard_at = self.loop.time()

    def close(self, reason: str = "") -> None:
        self.send(Goodbye(reason))
        self.link.close()
