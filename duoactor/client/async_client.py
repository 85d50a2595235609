"""The client for asyncio.

async with AsyncClient() as client:
    async for chunk in client.stream("Once upon a time", max_tokens=64):
        print(chunk.text, end="", flush=True)
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from duoactor.client.request import Completion, Prompt, make_request, make_sampling, turns
from duoactor.client.resume import Session
from duoactor.client.stream import Stream
from duoactor.launch.paths import default_address
from protocols import wire
from protocols.errors import ConnectionLost, DuoactorError, ProtocolError
from protocols.messages import (
    Cancel,
    ChatTurn,
    Detokenize,
    Done,
    DrainActor,
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Role,
    Sampling,
    Status,
    StatusReport,
    Swap,
    ToClient,
    Tokenize,
    Tokenized,
    Welcome,
)
from protocols.transport import Network

CONNECT_TIMEOUT_S = 10.0
RECONNECT_TIMEOUT_S = 30.0


class AsyncClient:
    """A connection to a verifier. Make it inside a running event loop; several streams may run at once.

    It says Hello again and resumes every unfinished stream by itself when the verifier comes back within
    ``reconnect_timeout`` seconds. Errors: ConnectionLost, RefusedError, RequestError.
    """

    def __init__(
        self,
        address: str = "",
        *,
        key: str = "",
        server_key: str = "",
        timeout: float = CONNECT_TIMEOUT_S,
        reconnect_timeout: float = RECONNECT_TIMEOUT_S,
        network: Network | None = None,
    ) -> None:
        """``address``: ``ipc://PATH`` or ``tcp://HOST:PORT``; empty for the default of ``duoactor up``. ``key`` and
        ``server_key`` are CURVE key files, needed for addresses beyond this host."""
        self.address = address or default_address()
        self.timeout, self.reconnect_timeout = timeout, reconnect_timeout
        self._keys = (key, server_key)
        self._network = network
        self._owns_network = network is None
        self._session = Session()
        self._streams: dict[str, asyncio.Queue[Any]] = {}
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._decoder = wire.Decoder(ToClient)
        self._refusal: DuoactorError | None = None
        self._closed = False

    # --- connection --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncClient:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def connect(self) -> None:
        """Say Hello and wait for the verifier's Welcome; done by itself at the first use."""
        if self._tasks:
            return
        if self._network is None:
            from protocols.security import load_security
            from protocols.zeromq import ZmqNetwork

            key, server_key = self._keys
            self._network = ZmqNetwork(load_security(key, server_key) if key or server_key else None)
        self._loop = asyncio.get_running_loop()
        self._link = self._network.connect(self.address)
        self._heard_at = self._lost_at = self._loop.time()
        self._welcomed = asyncio.Event()
        self._tasks = [asyncio.create_task(t) for t in (self._greet(), self._receive(), self._beat())]
        try:
            await asyncio.wait_for(self._welcomed.wait(), self.timeout)
        except TimeoutError:
            await self.aclose()
            raise ConnectionLost(
                f"no verifier answers at {self.address}; start one with `duoactor up`, or give its address"
            ) from None
        if self._refusal is not None:
            await self.aclose()
            raise self._refusal

    async def aclose(self) -> None:
        """Cancel what is open and disconnect."""
        if self._closed or not self._tasks:
            return
        self._closed = True
        for rid in list(self._session.streams):
            self._cancel(rid)
        self._send(Goodbye())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._link.close()
        if self._owns_network and self._network is not None:
            self._network.close()
        self._fail(ConnectionLost("the client was closed"))

    def _hello(self) -> None:
        self._send(
            Hello(
                Role.CLIENT,
                f"client-{socket.gethostname()}-{os.getpid()}",
                uuid.uuid4().hex[:12],
                wire.PROTOCOL,
                host=socket.gethostname(),
                pid=os.getpid(),
            )
        )

    def _send(self, message: Message) -> bool:
        return self._link.send(wire.encode(message))

    async def _greet(self) -> None:
        """Knock while the verifier does not know us."""
        while True:
            if self._session.void and self._refusal is None:
                await self._link.writable()
                self._hello()
            await asyncio.sleep(0.5)

    async def _beat(self) -> None:
        seq = 0
        while True:
            welcome = self._session.welcome
            await asyncio.sleep(welcome.heartbeat_ms / 1000 if welcome is not None else 0.5)
            now = self._loop.time()
            if not self._session.void:
                seq += 1
                self._lost_at = now
                self._send(Heartbeat("", seq))
                if welcome is not None and now - self._heard_at > welcome.ttl_ms / 1000:
                    self._session.lost()
            elif welcome is not None and now - self._lost_at > self.reconnect_timeout:
                self._fail(
                    ConnectionLost(
                        f"the verifier at {self.address} has not come back within {self.reconnect_timeout:.0f} s"
                    )
                )
                self._lost_at = now

    async def _receive(self) -> None:
        try:
            while True:
                frames = await self._link.receive()
                try:
                    message = self._decoder.decode(frames)
                except ProtocolError as error:
                    self._refuse(error)
                    continue
                self._heard_at = self._loop.time()
                self._take(message)
        except DuoactorError as error:
            self._refuse(error)

    def _take(self, message: Message) -> None:
        result = self._session.receive(message)
        if self._session.welcome is not None and not self._session.void:
            self._welcomed.set()
        if result.greet:
            self._hello()
        for out in result.send:
            self._send(out)
        news = result.news
        if news is None:
            return
        if (queue := self._streams.get(result.rid)) is not None:
            queue.put_nowait(news)
        elif (asked := self._asked.pop(result.rid, None)) is not None and not asked.done():
            if isinstance(news, DuoactorError):
                asked.set_exception(news)
            else:
                asked.set_result(news)
        elif not result.rid and isinstance(news, DuoactorError):
            self._refuse(news)

    def _refuse(self, error: DuoactorError) -> None:
        self._refusal = error
        self._welcomed.set()
        self._fail(error)

    def _fail(self, error: DuoactorError) -> None:
        """Every open stream and question ends with that error."""
        for queue in self._streams.values():
            queue.put_nowait(error)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(error)
        self._asked.clear()

    @property
    def welcome(self) -> Welcome:
        """What the verifier said of itself and its model. ConnectionLost before the first connection."""
        if self._session.welcome is None:
            raise ConnectionLost(f"no verifier at {self.address} has answered yet")
        return self._session.welcome

    # --- streams -----------------------------------------------------------------------------------------------------

    def stream(
        self,
        prompt: Prompt = "",
        *,
        messages: Sequence[ChatTurn | Mapping[str, str]] = (),
        sampling: Sampling | None = None,
        method: str = "",
        num_speculative_tokens: int = 0,
        sequences: int = 0,
        **options: Any,
    ) -> Stream:
        """Stream an answer to a text, token ids, or a conversation (turns of ``role`` and ``content``).

        ``options`` are the fields of :class:`Sampling`, such as ``temperature=0.7`` and ``max_tokens=64``.
        ``method``, ``num_speculative_tokens`` (gamma) and ``sequences`` choose how to speculate; they never change
        the text. Iterating raises RequestError, RefusedError or ConnectionLost.
        """
        request = make_request(
            prompt,
            messages,
            make_sampling(sampling, options),
            method=method,
            num_speculative_tokens=num_speculative_tokens,
            sequences=sequences,
        )
        return Stream(request, self._begin, self._end)

    async def generate(self, prompt: Prompt = "", **options: Any) -> Completion:
        """The whole answer at once; options as for :meth:`stream`."""
        async with self.stream(prompt, **options) as stream:
            return await stream.completion()

    async def chat(self, messages: Sequence[ChatTurn | Mapping[str, str]], **options: Any) -> Completion:
        """The assistant's next turn; options as for :meth:`stream`."""
        return await self.generate(messages=messages, **options)

    async def _begin(self, stream: Stream) -> None:
        rid = stream.request.rid
        if rid in self._streams:
            return
        await self.connect()
        self._streams[rid] = stream.queue
        for message in self._session.start(stream.request):
            self._send(message)

    def _end(self, stream: Stream) -> None:
        rid = stream.request.rid
        if self._streams.pop(rid, None) is not None and rid in self._session.streams:
            self._loop.call_soon_threadsafe(self._cancel, rid) if not self._loop.is_closed() else None

    def _cancel(self, rid: str) -> None:
        if self._session.stop(rid):
            self._send(Cancel(rid))

    # --- questions ---------------------------------------------------------------------------------------------------

    async def _ask(self, question: Status | Swap | DrainActor | Tokenize | Detokenize) -> Any:
        await self.connect()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._asked[question.rid] = answer
        self._send(question)
        try:
            return await asyncio.wait_for(answer, self.timeout)
        except TimeoutError:
            raise ConnectionLost(f"the verifier at {self.address} does not answer; is it still running?") from None
        finally:
            self._asked.pop(question.rid, None)

    async def status(self) -> StatusReport:
        """What the verifier is doing: requests, drafters, counters, the budget in force."""
        report: StatusReport = await self._ask(Status(uuid.uuid4().hex))
        return report

    async def tokenize(self, text: str | Sequence[ChatTurn | Mapping[str, str]]) -> Tokenized:
        """The target's tokens of a text, or of a conversation in its chat template."""
        rid = uuid.uuid4().hex
        asked = Tokenize(rid, text) if isinstance(text, str) else Tokenize(rid, messages=turns(text))
        tokenized: Tokenized = await self._ask(asked)
        return tokenized

    async def detokenize(self, token_ids: Sequence[int]) -> Tokenized:
        """The text of tokens, together and one by one."""
        tokenized: Tokenized = await self._ask(Detokenize(uuid.uuid4().hex, tuple(token_ids)))
        return tokenized

    async def swap(self, old: str, new: str) -> str:
        """Move every stream of drafter ``old`` to drafter ``new``; a sentence that says how many."""
        done: Done = await self._ask(Swap(uuid.uuid4().hex, old, new))
        return done.detail

    async def drain(self, actor_id: str) -> str:
        """Take a drafter out of service; its streams go on with others."""
        done: Done = await self._ask(DrainActor(uuid.uuid4().hex, actor_id))
        return done.detail
