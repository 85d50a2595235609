"""A client's connection to a verifier, from the first Hello to its end: the session's driver, with socket and clock."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable

from actors.peer import Line
from actors.telemetry import Subscription
from duoactor.client.resume import News, Question, Result, Session
from protocols import wire
from protocols.errors import ConnectionLost, DuoactorError, ProtocolError, RequestError
from protocols.handshake import Lost
from protocols.messages import Chunk, FailureCode, Generate, Hello, Message, Role, ToClient, Welcome
from protocols.transport import Network

log = logging.getLogger("duoactor.client")
CONNECT_TIMEOUT_S = 10.0
RECONNECT_TIMEOUT_S = 30.0
WATCH_S = 0.25  # between two looks at what has taken too long
# A stream whose chunks lie unread for so long is suspended. Reading on resumes it at the price of its prefill, so that
# this is longer than people pause, and short beside an answer that nobody will read.
UNREAD_S = 10.0


class Mailbox:
    """What came for one call and was not read yet: of a stream at most one chunk per token. Putting in is the event
    loop's, taking out is safe in any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._news: deque[News] = deque()
        self._arrived = asyncio.Event()
        self._clock = clock
        self._unread_since: float | None = None
        self._closed = False

    def put(self, news: News) -> None:
        self._news.append(news)
        if self._unread_since is None:
            self._unread_since = self._clock()
        self._arrived.set()

    async def wait(self) -> None:
        """Until there is something to take, or nothing will come. Cancelling it loses nothing."""
        while not self._news and not self._closed:
            self._arrived.clear()
            await self._arrived.wait()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._arrived.set()

    def take(self) -> News | None:
        """The oldest news, if any; an error is raised."""
        try:
            news = self._news.popleft()
        except IndexError:
            return None
        self._unread_since = self._clock() if self._news else None
        if isinstance(news, DuoactorError):
            raise news
        return news

    def unread_for(self) -> float:
        """Seconds since somebody read, while there was something to read."""
        since = self._unread_since
        return 0.0 if since is None else self._clock() - since


class Connection:
    """``over`` is set once it has ended for good; until then it finds the verifier again by itself."""

    def __init__(
        self,
        network: Network,
        address: str,
        timeout: float | None,
        reconnect_timeout: float | None,
        ended: Callable[[], None],
    ) -> None:
        """The time-outs are those of :class:`duoactor.AsyncClient`; ``ended`` is called when all is over."""
        self.address = address
        self._network = network
        self._subscriptions: set[Subscription] = set()
        self._ended = ended
        self.over: DuoactorError | None = None
        self._wait = timeout is not None
        self._timeout = CONNECT_TIMEOUT_S if timeout is None else timeout
        self._reconnect_timeout = RECONNECT_TIMEOUT_S if reconnect_timeout is None else reconnect_timeout
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._session = Session(outlive_drain=reconnect_timeout is not None)
        self._mailboxes: dict[str, Mailbox] = {}
        self._welcomed = asyncio.Event()
        self._lost_at = self._loop.time()
        self._announced = False  # that streams wait for the verifier
        self._line = Line(network, address, _hello(), wire.Decoder(ToClient))
        self._work = asyncio.create_task(self._run())

    # --- its life ----------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Until the verifier knows us. ConnectionLost when nobody listens at the address, or when it takes too long;
        RefusedError."""
        if self._line.known:
            return
        try:
            async with asyncio.timeout(self._timeout):
                if not self._wait and self.over is None:
                    await self._line.link.writable(wait=False)
                await self._welcomed.wait()
        except TimeoutError:
            raise ConnectionLost(
                f"no verifier answers at {self.address}; start one with `duoactor up`, or give its address and, while "
                "it loads its model, a longer timeout"
            ) from None
        if self.over is not None:
            raise self.over

    @property
    def welcome(self) -> Welcome:
        """The newest; there is one once ``ready`` has returned."""
        assert self._line.welcome is not None
        return self._line.welcome

    async def close(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def _run(self) -> None:
        parts = [asyncio.create_task(part) for part in (self._line.beat(), self._receive(), self._watch())]
        fault: DuoactorError = ConnectionLost("the client was closed")
        try:
            await asyncio.gather(*parts)
        except DuoactorError as error:
            fault = error
        except Exception as error:
            fault = ConnectionLost(f"the client failed, which is a defect: {error!r}")
            raise
        finally:
            for part in parts:
                part.cancel()
            self.over = fault
            self._tell(self._session.fail(fault))
            self._welcomed.set()
            for subscription in self._subscriptions:
                subscription.close()
            self._line.close()
            self._ended()

    async def _receive(self) -> None:
        while True:
            self._take(await self._line.next())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            while (news := self._line.next_nowait()) is not None:
                self._take(news)
            for rid, mailbox in self._mailboxes.items():
                if mailbox.unread_for() > UNREAD_S and (cancel := self._session.suspend(rid)) is not None:
                    self._line.send(cancel)
            self._submit()
            if not self._line.known and self._session.calls:
                self._grow_impatient(self._loop.time() - self._lost_at)

    def _grow_impatient(self, waited_s: float) -> None:
        if not self._announced:
            self._announced = True
            log.warning("waiting for the verifier at %s to come back", self.address)
        if waited_s > self._reconnect_timeout:
            detail = f"the verifier at {self.address} has not come back within {self._reconnect_timeout:.0f} s"
            self._tell(self._session.fail(ConnectionLost(detail)))

    # --- telemetry ---------------------------------------------------------------------------------------------------

    async def telemetry(self) -> AsyncGenerator[Message, None]:
        """What the verifier publishes, also after it came back. Raises what ended this connection."""
        subscription = Subscription(self._network, self.address, self.welcome)
        self._subscriptions.add(subscription)
        try:
            while True:
                yield await subscription.receive()
        except ConnectionLost:
            raise self.over or ConnectionLost("the client was closed") from None
        finally:
            self._subscriptions.discard(subscription)
            subscription.close()

    # --- calls -------------------------------------------------------------------------------------------------------

    def start(self, request: Generate) -> Mailbox:
        """Begin a stream. Its chunks, and the error that may end it, come into the mailbox."""
        self._session.start(request)
        return self._open(request.rid)

    def ask(self, question: Question) -> Mailbox:
        self._session.ask(question)
        return self._open(question.rid)

    def _open(self, rid: str) -> Mailbox:
        mailbox = self._mailboxes[rid] = Mailbox(self._loop.time)
        if self.over is not None:
            self._tell(self._session.fail(self.over))
        self._submit()
        return mailbox

    def wake(self, rid: str) -> None:
        """Somebody waits for more of a stream: if it was suspended, it goes on."""
        if self._session.wake(rid):
            self._submit()

    def cancel(self, rid: str) -> None:
        """Nobody wants this call's answer any more."""
        if (mailbox := self._mailboxes.pop(rid, None)) is not None:
            mailbox.close()
        cancel = self._session.drop(rid)
        if cancel is not None:
            self._line.send(cancel)

    def cancel_soon(self, rid: str) -> None:
        """The same from any thread, also from a finalizer."""
        if self.over is None and os.getpid() == self._pid and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.cancel, rid)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Send what the verifier has not been asked; what cannot be queued now is tried again soon."""
        for rid, message in list(self._session.due()):
            try:
                if not self._line.send(message):
                    return
            except ProtocolError as error:  # too large for any receiver
                self._tell(self._session.reject(rid, RequestError(FailureCode.BAD_REQUEST, str(error))))
            else:
                self._session.sent(rid)

    def _take(self, message: Message | Lost) -> None:
        self._tell(self._session.receive(message))
        if isinstance(message, Welcome):
            for subscription in self._subscriptions:
                subscription.follow(message)
        if isinstance(message, Lost):
            self._welcomed.clear()
            self._lost_at = self._loop.time()
        elif self._line.known and not self._welcomed.is_set():
            self._welcomed.set()
            if self._announced:
                log.warning("the verifier at %s is back", self.address)
                self._announced = False
        self._submit()

    def _tell(self, result: Result) -> None:
        if result.send is not None:
            self._line.send(result.send)
        for rid, news in result.news:
            ends = not isinstance(news, Chunk) or news.finish_reason is not None
            mailbox = self._mailboxes.pop(rid, None) if ends else self._mailboxes.get(rid)
            if mailbox is not None:
                mailbox.put(news)


def _hello() -> Hello:
    name, incarnation = socket.gethostname(), uuid.uuid4().hex[:12]
    return Hello(Role.CLIENT, f"client-{name}-{os.getpid()}", incarnation, host=name, pid=os.getpid())
