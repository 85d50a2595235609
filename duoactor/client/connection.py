"""A client's connection to its verifiers, from the first Hello to its end: the session's sockets and clock."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from actors.peer import SILENT_WAIT_S, Line, introduction
from actors.tasks import until_one_ends
from duoactor.client.options import ClientOptions
from duoactor.client.session import News, Question, Result, Session
from protocols import wire
from protocols.errors import ConnectionLost, DuoactorError, ProtocolError, RequestError
from protocols.handshake import Lost, Why
from protocols.messages import Chunk, FailureCode, Generate, Message, Role, ToClient, Welcome
from protocols.transport import Network

log = logging.getLogger("duoactor.client")
CONNECT_TIMEOUT_S = 10.0
RECONNECT_TIMEOUT_S = 30.0
WATCH_S = 0.25  # between two looks at what has taken too long
MOST_UNREAD = 64  # chunks of a stream, at which it is paused
FILE = "file://"  # begins the name of a file that holds a verifier's address at present


class Mailbox:
    """Unread answers to one call: of a stream few more than ``MOST_UNREAD`` chunks. Putting in is the event loop's,
    taking out is safe in any thread."""

    def __init__(self) -> None:
        self._news: deque[News] = deque()
        self._arrived = asyncio.Event()
        self._closed = False

    def put(self, news: News) -> None:
        self._news.append(news)
        self._arrived.set()

    @property
    def unread(self) -> int:
        return len(self._news)

    async def wait(self) -> None:
        """Wait until there is something to take, or nothing will come. Cancelling it loses nothing."""
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
        if isinstance(news, DuoactorError):
            raise news
        return news


class Connection:
    """A client's connection to its verifiers, which finds them again by itself. ``over``: why it has ended for good."""

    def __init__(
        self,
        network: Network,
        addresses: Sequence[str],
        options: ClientOptions,
        ended: Callable[[], None],
    ) -> None:
        """``options``: all of them; ``ended`` is called when all is over."""
        self._ended = ended
        self.over: DuoactorError | None = None
        self._options = options
        self.loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        outlive_drain = options["reconnect_timeout"] is not None
        self._session = Session(outlive_drain, addresses, options["max_retries"], self.loop.time)
        self._mailboxes: dict[str, Mailbox] = {}
        self._welcomed = asyncio.Event()
        self._welcome: Welcome | None = None  # the latest of any verifier
        self._lost_at = self.loop.time()
        self._announced = False  # whether it was said that streams wait for the verifier
        self._network = network
        self._addresses = tuple(addresses)
        self._lines = {one: self._line(one) for one in addresses if not one.startswith(FILE)}
        self._waiting = 0  # calls that wait for the verifier to accept us
        self._awaited_at = self.loop.time()  # when the last of them ended
        self._work = asyncio.create_task(self._run())
        self._work.add_done_callback(self._let_go)

    # --- its life ----------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until the verifier has accepted us. ConnectionLost when the address has no listener, or when it takes
        too long; RefusedError. If none ever has, the connection ends with the last call that waits, or soon after one
        that was cancelled: the next may find a slow verifier."""
        self._waiting += 1
        try:
            await self._accepted()
        except DuoactorError as error:
            if self._waiting == 1 and not self.answered:
                await self.close(error)
            raise
        finally:
            self._waiting -= 1
            self._awaited_at = self.loop.time()

    async def _accepted(self) -> None:
        if self._known():
            return
        timeout = self._options["timeout"]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S if timeout is None else timeout):
                if timeout is None:
                    await until_one_ends(self._somebody(), self._welcomed.wait())
                await self._welcomed.wait()
        except TimeoutError:
            raise ConnectionLost(
                f"no verifier answers at {self.address}; start one with `duoactor up`, give its address, or, while it "
                "loads its model, give a longer timeout"
            ) from None
        if self.over is not None:
            raise self.over

    async def _somebody(self) -> None:
        """ConnectionLost once no address is known to have a listener."""
        if len(self._lines) < len(self._addresses):
            return  # one is still to be found
        pending = {asyncio.create_task(line.link.writable(wait=False)) for line in self._lines.values()}
        fault: BaseException | None = None
        try:
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                faults = [task.exception() for task in done]
                if None in faults:
                    return
                fault = faults[0]
        finally:
            for task in pending:
                task.cancel()
        if fault is not None:
            raise self.over or fault

    def _known(self) -> list[str]:
        """The addresses of the verifiers that know us and have the model in force."""
        return [one for one, line in self._lines.items() if line.known and self._session.verifiers.serves(one)]

    @property
    def answered(self) -> bool:
        """Whether a verifier has accepted us, at some time."""
        return self._welcome is not None

    @property
    def address(self) -> str:
        return ", ".join(self._addresses)

    @property
    def verifiers(self) -> list[str]:
        """Addresses of usable verifiers, in the given order."""
        return self._session.verifiers.usable()

    @property
    def welcome(self) -> Welcome:
        """The newest of the first verifier that is there, else the last that came; there is one once ``ready`` has
        returned."""
        first = self._first()
        welcome = self._welcome if first is None else first.welcome
        assert welcome is not None
        return welcome

    def _first(self) -> Line | None:
        """None while the only verifier has moved and has not answered yet."""
        told = {address: line for address, line in self._lines.items() if line.welcome is not None}
        return next((told[one] for one in (*self.verifiers, *self._known(), *told) if one in told), None)

    async def close(self, why: DuoactorError) -> None:
        self.over = self.over or why
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    def close_soon(self) -> None:
        """End the connection; from any thread, also from a finalizer."""
        if self._reachable:
            self.loop.call_soon_threadsafe(self._work.cancel)

    @property
    def _reachable(self) -> bool:
        return self.over is None and os.getpid() == self._pid and not self.loop.is_closed()

    async def _run(self) -> None:
        serving = [self._serve(address) for address in self._addresses]
        parts = [asyncio.create_task(part) for part in (*serving, self._watch())]
        try:
            await asyncio.gather(*parts)
        except DuoactorError as error:
            self.over = self.over or error
        except Exception as error:
            self.over = self.over or ConnectionLost(f"the client failed, which is a defect: {error!r}")
            raise
        finally:
            for part in parts:
                part.cancel()

    def _let_go(self, work: asyncio.Task[None]) -> None:
        """Called when the work is over, also where it was closed before it began."""
        self.over = self.over or closed()
        self._tell(self._session.fail(self.over))
        self._welcomed.set()
        for line in self._lines.values():
            line.close()
        self._ended()

    async def _serve(self, address: str) -> None:
        """Serve one verifier. Its errors leave the others alone, and are raised if there is no other."""
        try:
            while True:
                line = self._lines.get(address) or await self._find(address)
                await until_one_ends(line.beat(), self._receive(address, line), self._moved(address, line.address))
                self._part_with(address)
        except DuoactorError as error:
            if len(self._addresses) == 1:
                raise
            log.warning("%s; the other verifiers serve on", error)
            if address in self._lines:
                self._part_with(address)

    def _line(self, address: str) -> Line:
        return Line(self._network, address, introduction(Role.CLIENT), wire.Decoder(ToClient))

    def _part_with(self, address: str) -> None:
        self._lines.pop(address).close()
        self._take(Lost(Why.SILENT), address)

    async def _find(self, address: str) -> Line:
        """A line to the verifier that a file names, once it does."""
        await self._moved(address, "")
        line = self._lines[address] = self._line(resolve(address))
        return line

    async def _moved(self, address: str, there: str) -> None:
        """Wait until the verifier is elsewhere."""
        while True:
            if resolve(address) not in ("", there):
                return
            await asyncio.sleep(WATCH_S)

    async def _receive(self, address: str, line: Line) -> None:
        while True:
            self._take(await line.next(), address)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for address, line in list(self._lines.items()):
                while (news := line.next_nowait()) is not None:
                    self._take(news, address)
            if not (self.answered or self._waiting) and self.loop.time() - self._awaited_at > CONNECT_TIMEOUT_S:
                raise ConnectionLost(f"no call waits for the verifier at {self.address} any more")
            self._tell(self._session.expire())
            for rid in self._session.paused:
                if not self._mailboxes[rid].unread:
                    self._session.go_on(rid)
            self._submit()
            if not self._known() and self._session.calls:
                self._grow_impatient(self.loop.time() - self._lost_at)

    def _grow_impatient(self, waited_s: float) -> None:
        if self.answered and not self._announced and waited_s > SILENT_WAIT_S:  # not merely busy
            self._announced = True
            log.warning("waiting for the verifier at %s to come back", self.address)
        limit = self._options["reconnect_timeout"]
        limit = RECONNECT_TIMEOUT_S if limit is None else limit
        if waited_s > limit:
            detail = f"the verifier at {self.address} has not come back within {limit:.0f} s; start it again"
            self._tell(self._session.fail(ConnectionLost(detail)))

    # --- telemetry ---------------------------------------------------------------------------------------------------

    async def telemetry(self) -> AsyncGenerator[Message, None]:
        """The verifier's publications, also after it came back. Raises the error that ended this connection, and
        RequestError if our key is not for watching."""
        if not self.welcome.telemetry:
            detail = "this key hears no telemetry; make one with `duoactor keys NAME --role operator` for that"
            raise RequestError(FailureCode.FORBIDDEN, detail)
        while (over := self.over) is None:
            if (first := self._first()) is None:
                await self._welcomed.wait()
                continue
            subscription = first.subscribe()
            try:
                while True:
                    yield await subscription.receive()
            except ConnectionLost:
                pass  # the end, or the verifier has moved
            finally:
                subscription.close()
        raise over

    # --- calls -------------------------------------------------------------------------------------------------------

    def start(self, request: Generate) -> Mailbox:
        """Begin a stream. Its chunks, and the error that may end it, come into the mailbox."""
        self._session.start(request)
        return self._open(request.rid)

    def ask(self, question: Question, at: str | None = None) -> Mailbox:
        """``at``: the address of the verifier that is asked; None: any."""
        self._session.ask(question, at)
        return self._open(question.rid)

    def _open(self, rid: str) -> Mailbox:
        mailbox = self._mailboxes[rid] = Mailbox()
        if self.over is not None:
            self._tell(self._session.fail(self.over))
        self._submit()
        return mailbox

    def cancel(self, rid: str) -> None:
        """This call's answer is not wanted any more."""
        if (mailbox := self._mailboxes.pop(rid, None)) is not None:
            mailbox.close()
        place = self._session.place(rid)
        cancel = self._session.drop(rid)
        if cancel is not None:
            self._send(cancel, place)

    def cancel_soon(self, rid: str) -> None:
        """The same from any thread, also from a finalizer."""
        if self._reachable:
            self.loop.call_soon_threadsafe(self.cancel, rid)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Send what the verifier has not been asked; what cannot be queued now is tried again soon."""
        for address, line in list(self._lines.items()):
            for rid, message in list(self._session.due(address)):
                try:
                    if not line.send(message):
                        break
                except ProtocolError as error:  # too large for any receiver
                    self._tell(self._session.reject(rid, RequestError(FailureCode.BAD_REQUEST, str(error))))
                else:
                    self._session.sent(rid)

    def _send(self, message: Message, address: str | None) -> None:
        if address in self._lines:
            self._lines[address].send(message)

    def _take(self, message: Message | Lost, address: str) -> None:
        if isinstance(message, Welcome):
            self._welcome = message
        self._tell(self._session.receive(message, address), address)
        if isinstance(message, Chunk):
            return  # it changes neither who knows us nor what is to be sent
        known = bool(self._known())
        if isinstance(message, Lost) and not known:
            self._welcomed.clear()
            self._lost_at = self.loop.time()
        elif known and not self._welcomed.is_set():
            self._welcomed.set()
            if self._announced:
                log.warning("the verifier at %s is back", self.address)
                self._announced = False
        self._submit()

    def _tell(self, result: Result, address: str | None = None) -> None:
        if result.send is not None:
            self._send(result.send, address)
        for rid, news in result.news:
            ends = not isinstance(news, Chunk) or news.finish_reason is not None
            mailbox = self._mailboxes.pop(rid, None) if ends else self._mailboxes.get(rid)
            if mailbox is not None:
                mailbox.put(news)
                if ends:
                    mailbox.close()  # several may wait, and one of them takes the last news
                elif mailbox.unread >= MOST_UNREAD:
                    self._pause(rid)

    def _pause(self, rid: str) -> None:
        """This answer is not being read: have the verifier work for others until the client has read its chunks."""
        place = self._session.place(rid)
        if (cancel := self._session.pause(rid)) is not None:
            self._send(cancel, place)


def resolve(address: str) -> str:
    """The verifier's present address, read from a file if need be; empty while there is no such file."""
    if not address.startswith(FILE):
        return address
    try:
        return Path(address.removeprefix(FILE)).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def closed() -> ConnectionLost:
    return ConnectionLost("the client was closed; make a new one")


def forked() -> ConnectionLost:
    return ConnectionLost("a client does not survive a fork; make a new one in this process")
