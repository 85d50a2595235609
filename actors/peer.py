"""A peer's line to the verifier, which drafters, the controller, the learner and clients share.

:class:`protocols.handshake.Handshake` decides what is sent and when; the line runs it with a socket and a clock.
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
SILENT_WAIT_S = 3.0  # a verifier that is up answers in milliseconds: after this time, log what is waited for


def incarnation() -> str:
    """A name for this start of this process, by which others tell a restart from a reconnect."""
    return uuid.uuid4().hex[:12]


def introduction(role: Role, actor_id: str = "", model: ModelInfo | None = None) -> Hello:
    """The Hello of this process, with its model if it has one. Without an ``actor_id`` it is named by role, host and
    process."""
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
    """Keeps a peer connected, and hands it what concerns itself.

    ``next()`` gives messages; a Welcome whenever the verifier gets to know this peer, again perhaps; and :class:`Lost`
    when the verifier does not know it any more, so that everything that was leased is void."""

    def __init__(
        self,
        network: Network,
        address: str,
        hello: Hello,
        decoder: wire.Decoder,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``clock`` gives seconds. By default it is the event loop's, which with uvloop counts whole milliseconds."""
        self.address = address
        self.hello = hello
        self.decoder = decoder
        self.link: Link = network.connect(address)
        self._network = network
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self.malformed = 0
        self._loop = asyncio.get_running_loop()
        self.clock = clock or self._loop.time
        self._handshake = Handshake(hello, self.clock())
        self._news: deque[Message | Lost] = deque()  # messages that ``next`` has not given out yet

    @property
    def known(self) -> bool:
        """Whether the verifier knows this peer. From others it accepts nothing but Hello."""
        return self._handshake.known

    @property
    def welcome(self) -> Welcome | None:
        """The latest Welcome."""
        return self._handshake.welcome

    @property
    def round_trip_s(self) -> float:
        """See :attr:`Handshake.round_trip_s`."""
        return self._handshake.round_trip_s

    async def serve(self, stop: asyncio.Event, work: Callable[[Welcome], Sequence[Coroutine[Any, Any, None]]]) -> None:
        """After the first Welcome, run the coroutines that ``work`` makes of it until one of them ends or ``stop`` is
        set; then say Goodbye. Raises as ``open`` does."""
        try:
            await until_one_ends(self._serve(work), stop.wait())
        finally:
            self.close("leaving")

    async def _serve(self, work: Callable[[Welcome], Sequence[Coroutine[Any, Any, None]]]) -> None:
        await until_one_ends(*work(await self.open()), self.beat())

    async def open(self) -> Welcome:
        """Say Hello and wait for Welcome, without a limit, since a verifier may be loading its model.

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
        """The next news. Raises as ``open`` does."""
        while not self._news:
            self._read(await self.link.receive())
        return self._news.popleft()

    def next_nowait(self) -> Message | Lost | None:
        """The next news, if there is any."""
        while not self._news and (frames := self.link.receive_nowait()) is not None:
            self._read(frames)
        return self._news.popleft() if self._news else None

    def send(self, message: Message) -> bool:
        """Send a message. Returns False if there is no connection now, or the verifier does not know this peer."""
        return self.known and self.link.send(wire.encode(message))

    def busy(self, seconds: float) -> None:
        """Announce a silence of this length to the verifier."""
        self._take(self._handshake.busy(seconds))

    async def beat(self) -> None:
        """Send Hello until the verifier answers, then heartbeats; it does not return."""
        while True:
            if not self.known:
                await self.link.writable()
            await asyncio.sleep(max(0.0, self._handshake.due - self.clock()))
            self._take(self._handshake.tick(self.clock()))

    def subscribe(self) -> Subscription:
        """A subscription to the verifier's telemetry. Only after the first Welcome."""
        assert self.welcome is not None
        subscription = Subscription(self._network, self.address, self.welcome)
        self._subscriptions.add(subscription)
        return subscription

    def close(self, reason: str = "") -> None:
        """Say Goodbye and disconnect."""
        self.send(Goodbye(reason))
        self.link.close()
        for subscription in self._subscriptions:
            subscription.close()

    def _read(self, frames: list[bytes]) -> None:
        try:
            message = self.decoder.decode(frames)
        except ProtocolError:
            # A verifier of another version answers Hello so. Where foreign frames are all that comes before the first
            # Welcome, something else listens at the address; else they are a malformed message like others.
            if not self.known and wire.is_other_version(frames):
                raise
            foreign = not self.known and not self.welcome and wire.is_foreign(frames)
            if foreign and not self._handshake.may_pass(self.clock()):
                raise
            self.malformed += 1
            return
        if isinstance(message, Refuse) and self.known:
            log.info("the verifier at %s answers: %s", self.address, message.detail)
        self._take(self._handshake.receive(message, self.clock()))

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
