"""A peer's line to the verifier: what drafters, the controller and clients share.

:class:`protocols.handshake.Handshake` decides what to say and when; this drives it with a socket and a clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from protocols import wire
from protocols.errors import ProtocolError
from protocols.handshake import Handshake, Lost, Step
from protocols.messages import Goodbye, Hello, Message, Refuse, Welcome
from protocols.transport import Link, Network

log = logging.getLogger("duoactor.peer")
SILENT_WAIT_S = 3.0  # a verifier that is up answers in milliseconds: after this long, say what is waited for


class Line:
    """``next()`` gives what concerns the peer itself: messages, a ``Welcome`` whenever the verifier comes to know this
    peer anew, and :class:`Lost` when it does not know it any more: everything that was leased is void then."""

    def __init__(
        self,
        network: Network,
        address: str,
        hello: Hello,
        decoder: wire.Decoder,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``clock`` gives seconds; by default the event loop's, which may count whole milliseconds only."""
        self.address = address
        self.hello = hello
        self.decoder = decoder
        self.link: Link = network.connect(address)
        self.malformed = 0
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._handshake = Handshake(hello, self._clock())
        self._news: deque[Message | Lost] = deque()  # of a moment in which nobody was reading

    @property
    def known(self) -> bool:
        """Whether the verifier knows this peer: it hears nothing but Hello from one that it does not know."""
        return self._handshake.known

    @property
    def welcome(self) -> Welcome | None:
        """What the verifier said of itself when it came to know this peer."""
        return self._handshake.welcome

    @property
    def round_trip_s(self) -> float:
        """How long a message to the verifier and its answer take, at best."""
        return self._handshake.round_trip_s

    async def open(self) -> Welcome:
        """Say Hello and wait for Welcome: for ever, since a verifier may be loading its model.

        Raises RefusedError with the verifier's sentence, ConnectionLost, or ProtocolError (another version).
        """
        beating = asyncio.create_task(self.beat())
        meeting = asyncio.create_task(self._meet())
        waiting = self._loop.call_later(SILENT_WAIT_S, self._say_what_is_waited_for)
        try:
            await asyncio.wait([meeting, beating], return_when=asyncio.FIRST_COMPLETED)
            if beating.done():
                beating.result()
            return meeting.result()
        finally:
            waiting.cancel()
            beating.cancel()
            meeting.cancel()
            await asyncio.gather(beating, meeting, return_exceptions=True)

    def _say_what_is_waited_for(self) -> None:
        log.info("waiting for a verifier at %s", self.address)

    async def _meet(self) -> Welcome:
        while not isinstance(news := await self.next(), Welcome):
            pass
        return news

    async def next(self) -> Message | Lost:
        while not self._news:
            self._read(await self.link.receive())
        return self._news.popleft()

    def next_nowait(self) -> Message | Lost | None:
        while not self._news and (frames := self.link.receive_nowait()) is not None:
            self._read(frames)
        return self._news.popleft() if self._news else None

    def send(self, message: Message) -> bool:
        """False if it cannot be sent now, or would mean nothing to a verifier that does not know this peer."""
        return self.known and self.link.send(wire.encode(message))

    def busy(self, seconds: float) -> None:
        """Say that nothing will be heard from this peer for so long."""
        self._take(self._handshake.busy(seconds))

    async def beat(self) -> None:
        """Hello until the verifier answers, then heartbeats; for ever."""
        while True:
            if not self.known:
                await self.link.writable()
            await asyncio.sleep(max(0.0, self._handshake.due - self._clock()))
            self._take(self._handshake.tick(self._clock()))

    def close(self, reason: str = "") -> None:
        self.send(Goodbye(reason))
        self.link.close()

    def _read(self, frames: list[bytes]) -> None:
        try:
            message = self.decoder.decode(frames)
        except ProtocolError:
            if not self.known and wire.is_foreign(frames):
                raise  # this is how a verifier of another version answers Hello
            self.malformed += 1
            return
        if isinstance(message, Refuse) and self.known:
            log.info("the verifier at %s answers: %s", self.address, message.detail)
        self._take(self._handshake.receive(message, self._clock()))

    def _take(self, step: Step) -> None:
        if step.send is not None:
            self.link.send(wire.encode(step.send))
        if step.news is not None:
            if isinstance(step.news, Lost):
                log.info("lost the verifier at %s (%s)", self.address, step.news.why)
            elif isinstance(step.news, Welcome):
                log.info("connected to the verifier at %s", self.address)
            self._news.append(step.news)
