"""A peer's line to the verifier: what drafters, the controller and clients share.

:class:`protocols.handshake.Handshake` decides what to say and when; this drives it with a socket and a clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from msgspec.structs import replace

from actors.tasks import until_one_ends
from actors.telemetry import Subscription
from protocols import wire
from protocols.errors import ProtocolError
from protocols.handshake import Handshake, Lost, Step
from protocols.messages import Goodbye, Hello, Message, Refuse, Role, Welcome
from protocols.transport import Link, Network

if TYPE_CHECKING:
    from actors.models import ModelInfo

log = logging.getLogger("duoactor.peer")
SILENT_WAIT_S = 3.0  # a verifier that is up answers in milliseconds: after this long, say what is waited for


def incarnation() -> str:
    """A name for this start of this process; peers tell a restart from a reconnect by it."""
    return uuid.uuid4().hex[:12]


def introduction(role: Role, actor_id: str = "", model: ModelInfo | None = None) -> Hello:
    """What this process says of itself and of its model, if it has one. Without a name it gets one of its own."""
    host, pid = socket.gethostname(), os.getpid()
    hello = Hello(role, actor_id or f"{role}-{host}-{pid}", incarnation(), host=host, pid=pid)
    if model is None:
        return hello
    return replace(
        hello,
        model_id=model.model_id,
        vocab_size=model.vocab_size,
        tokenizer_digest=model.tokenizer_digest,
        max_context=model.max_context,
        tokenizer=model.tokenizer,
    )


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
        self._network = network
        self._subscriptions: WeakSet[Subscription] = WeakSet()
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

    async def serve(self, stop: asyncio.Event, work: Callable[[Welcome], Sequence[Coroutine[Any, Any, None]]]) -> None:
        """From the first Welcome on do what ``work`` makes of it, until a part of that ends or ``stop`` is set; then
        say Goodbye. Raises as ``open`` does."""
        try:
            await until_one_ends(self._serve(work), stop.wait())
        finally:
            self.close("leaving")

    async def _serve(self, work: Callable[[Welcome], Sequence[Coroutine[Any, Any, None]]]) -> None:
        await until_one_ends(*work(await self.open()), self.beat())

    async def open(self) -> Welcome:
        """Say Hello and wait for Welcome: for ever, since a verifier may be loading its model.

        Raises RefusedError with the verifier's sentence, ConnectionLost, or ProtocolError (another version).
        """
        waiting = self._loop.call_later(SILENT_WAIT_S, self._say_what_is_waited_for)
        try:
            await until_one_ends(self._meet(), self.beat())
        finally:
            waiting.cancel()
        assert self.welcome is not None
        return self.welcome

    def _say_what_is_waited_for(self) -> None:
        log.info("waiting for a verifier at %s", self.address)

    async def _meet(self) -> None:
        while not isinstance(await self.next(), Welcome):
            pass

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

    def subscribe(self) -> Subscription:
        """What the verifier publishes; from its first Welcome on."""
        assert self.welcome is not None
        subscription = Subscription(self._network, self.address, self.welcome)
        self._subscriptions.add(subscription)
        return subscription

    def close(self, reason: str = "") -> None:
        self.send(Goodbye(reason))
        self.link.close()
        for subscription in self._subscriptions:
            subscription.close()

    def _read(self, frames: list[bytes]) -> None:
        try:
            message = self.decoder.decode(frames)
        except ProtocolError:
            # This is how a verifier of another version answers Hello. Before the first Welcome whatever is foreign
            # means that something else listens there; from a verifier it is one malformed message more.
            if not self.known and (wire.is_other_version(frames) or (not self.welcome and wire.is_foreign(frames))):
                raise
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
                for subscription in self._subscriptions:
                    subscription.follow(step.news)
            self._news.append(step.news)
