"""The client for asyncio: :class:`AsyncClient`."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Unpack, cast

from actors.settings import PEER_VARIABLES
from duoactor.client.connection import CONNECT_TIMEOUT_S, Connection, closed, forked
from duoactor.client.options import CLIENT_DEFAULTS, ClientOptions, Options, shows_client_options, shows_options
from duoactor.client.request import (
    PROMOTED,
    Completion,
    Prompt,
    Turn,
    checked,
    instance,
    make_request,
    make_tools,
    make_turns,
    typed,
    unsaid,
)
from duoactor.client.session import Answer, Question
from duoactor.client.stream import AsyncStream
from protocols.address import default_address, several
from protocols.errors import ConnectionLost, RequestError
from protocols.messages import (
    OWN_HEAD,
    Detokenize,
    Done,
    DrainActor,
    FailureCode,
    Message,
    Rendering,
    Status,
    StatusReport,
    Swap,
    Tokenize,
    Tokenized,
    Undo,
    Welcome,
)

RENDERING = Rendering()


class AsyncClient:
    """A client of one or several verifiers, for asyncio. It connects at its first use; any number of streams may run at
    once.

    If a verifier is lost, the client finds it again and resumes every unfinished stream by itself, with the same text.
    Every error is a ``DuoactorError``: ConnectionLost, RefusedError, RequestError or ConfigError. After an error the
    next call connects anew. The connection ends with ``aclose``, at the end of ``async with``, or with the last
    reference to the client and its streams.

    Example:
        ```python
        async with AsyncClient() as client:
            async for chunk in client.stream("def factorial(n):", max_tokens=64):
                print(chunk.text, end="", flush=True)
        ```
    """

    @shows_client_options
    def __init__(self, address: str | Sequence[str] = "", **options: Unpack[ClientOptions]) -> None:
        """Nothing is connected yet.

        Args:
            address: ``ipc://PATH`` or ``tcp://HOST:PORT`` of a verifier, or several, as a list or separated by commas,
                that serve the same model: requests are spread over them, and continue at another when one is lost.
                Without an address, the environment variables DUOACTOR_CONNECT, DUOACTOR_KEY and DUOACTOR_SERVER_KEY
                stand for what is not given here; without them, the address is the default of `duoactor up`.
        """
        if unknown := options.keys() - CLIENT_DEFAULTS.keys():
            raise TypeError(f"a client has no option {min(unknown)}; there are {', '.join(CLIENT_DEFAULTS)}")
        self._options: ClientOptions = {**CLIENT_DEFAULTS, **options}
        if not address:
            said = {name: os.environ.get(variable, "") for name, variable in PEER_VARIABLES.items()}
            address = said["connect"] or default_address()
            self._options["key"] = self._options["key"] or said["key"]
            self._options["server_key"] = self._options["server_key"] or said["server_key"]
        self.addresses = several(address)
        self._connection: Connection | None = None  # the last
        self._closed = False
        self._pid = os.getpid()

    @property
    def address(self) -> str:
        """The verifiers' addresses, separated by commas."""
        return ", ".join(self.addresses)

    # --- connection --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncClient:
        await self.connect()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def connect(self) -> None:
        """Connect now; otherwise the first call does.

        Raises:
            ConnectionLost: No verifier answers within ``timeout``.
            RefusedError: The verifier does not accept this client.
            ConfigError: An address is malformed, or a key file cannot be used.
        """
        await self._connected()

    async def aclose(self) -> None:
        """Cancel all open requests and disconnect. The client cannot be used again."""
        self._closed = True
        connection = self._connection
        if connection is not None and connection.loop is asyncio.get_running_loop() and os.getpid() == self._pid:
            await connection.close(closed())

    def __del__(self) -> None:
        if (connection := getattr(self, "_connection", None)) is not None:  # __init__ may have failed
            connection.close_soon()

    @property
    def welcome(self) -> Welcome:
        """The verifier's and its model's facts, sent when it accepted this client.

        Raises:
            ConnectionLost: There was no connection yet.
        """
        if self._connection is None or not self._connection.answered:
            raise ConnectionLost(f"no verifier at {self.address} has answered yet")
        return self._connection.welcome

    async def _connected(self) -> Connection:
        """The connection, made anew if there is none or the last has ended."""
        self._check_place()
        connection = self._connection
        if connection is None or connection.over is not None or connection.loop.is_closed():
            connection = self._connection = self._open()
        await connection.ready()
        return connection

    def _check_place(self) -> None:
        """A client belongs to one process, and while it is connected to one event loop."""
        if self._closed:
            raise closed()
        if os.getpid() != self._pid:
            raise forked()
        home = None if self._connection is None else self._connection.loop
        if home is not None and home is not asyncio.get_running_loop() and not home.is_closed():
            raise ConnectionLost("this client is connected in another event loop; make one client for each loop")

    def _open(self) -> Connection:
        network, leave = self._options["network"], _nothing
        if network is None:
            from protocols.security import load_security
            from protocols.zeromq import ZmqNetwork

            key, server_key = self._options["key"], self._options["server_key"]
            network = ZmqNetwork(load_security(key, server_key) if key or server_key else None)
            leave = network.close
        try:
            return Connection(network, self.addresses, self._options, leave)
        except BaseException:
            leave()
            raise

    # --- streams -----------------------------------------------------------------------------------------------------

    @shows_options
    def stream(self, prompt: Prompt = "", *, messages: Sequence[Turn] = (), **options: Unpack[Options]) -> AsyncStream:
        """Ask for an answer and iterate over its chunks as they come. Give either ``prompt`` or ``messages``.

        Args:
            prompt: A text, or the target's token ids.
            messages: A conversation for the model's chat template: turns with ``role`` and ``content``.

        Returns:
            An iterator over ``Chunk``; the last one has ``finish_reason`` and ``stats``. The request is sent when
            the first chunk is awaited; leaving the loop cancels it.

        Raises:
            RequestError: At once for what cannot be right; while reading, also for what the verifier refuses.
            RefusedError: While reading: the verifier does not accept this client.
            ConnectionLost: While reading: no verifier answers, or none came back in time.
        """
        return AsyncStream(make_request(prompt, messages, options), self._connected, unsaid(options))

    @shows_options
    async def generate(
        self, prompt: Prompt = "", *, messages: Sequence[Turn] = (), **options: Unpack[Options]
    ) -> Completion:
        """Ask for an answer and wait for all of it. Arguments and errors are those of ``stream``.

        Example:
            ```python
            answer = await client.generate("def factorial(n):", max_tokens=64, temperature=0.7, seed=1)
            print(answer.text, answer.finish_reason, answer.stats.acceptance_histogram)
            ```
        """
        async with self.stream(prompt, messages=messages, **options) as stream:
            return await stream.completion()

    @shows_options
    async def chat(self, messages: Sequence[Turn], **options: Unpack[Options]) -> Completion:
        """Ask for the assistant's next turn in a conversation and wait for all of it.

        Example:
            ```python
            answer = await client.chat([{"role": "user", "content": "What is speculative decoding?"}])
            ```
        """
        return await self.generate(messages=messages, **options)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def _ask(self, question: Question, at: str | None = None) -> Answer:
        checked(question)
        connection = await self._connected()
        mailbox = connection.ask(question, at)
        limit = self._options["timeout"] or CONNECT_TIMEOUT_S
        # a head, which may have to be fetched first; or a long text, after others: while the verifier lives, it works
        works = question.old == OWN_HEAD if isinstance(question, Swap) else isinstance(question, Tokenize | Detokenize)
        try:
            async with asyncio.timeout(None if works else limit):
                await mailbox.wait()
        except TimeoutError:
            raise ConnectionLost(
                f"the verifier at {self.address} does not answer; see whether it still runs, or give a longer timeout"
            ) from None
        finally:
            connection.cancel(question.rid)
        return cast(Answer, mailbox.take())

    async def _order(self, order: Question) -> str:
        """Send an order; of several verifiers, the drafter's own carries it out."""
        verifiers = (await self._connected()).verifiers
        for address in verifiers[:-1]:
            try:
                return cast(Done, await self._ask(order, address)).detail
            except RequestError as error:
                if error.code != FailureCode.NOT_FOUND:
                    raise
        return cast(Done, await self._ask(order, *verifiers[-1:])).detail

    async def status(self) -> StatusReport:
        """The verifier's requests, drafters, counters and budgets. Of several verifiers, the first one
        answers.

        Raises:
            ConnectionLost: It does not answer within ``timeout``.
        """
        return cast(StatusReport, await self._ask(Status(uuid.uuid4().hex)))

    async def telemetry(self) -> AsyncGenerator[Message, None]:
        """The verifier's publications as they come: a message for every round, and messages of drafters and the
        controller (``protocols/SPEC.md``, ``Telemetry``). A slow reader misses some.

        Raises:
            RequestError: This client's key does not allow to hear telemetry.
            ConnectionLost: The verifier is lost.
            RefusedError: The verifier does not accept this client.
        """
        connection = await self._connected()
        async with aclosing(connection.telemetry()) as messages:
            async for message in messages:
                yield message

    async def tokenize(
        self,
        text: str | Sequence[Turn],
        *,
        tools: Sequence[Mapping[str, Any]] | str = (),
        special_tokens: bool = True,
        rendering: Rendering = RENDERING,
    ) -> Tokenized:
        """The target's tokens of a text (``special_tokens``: with the tokenizer's own in front), or of a
        conversation (with ``tools``) in its chat template: ``token_ids``, and ``pieces``, the text of each."""
        rid = uuid.uuid4().hex
        asked = (
            Tokenize(rid, text, special_tokens=typed("special_tokens", special_tokens, bool))
            if isinstance(text, str)
            else Tokenize(
                rid,
                messages=make_turns(text, "text"),
                tools=make_tools(tools),
                rendering=instance("rendering", rendering, Rendering) or RENDERING,
            )
        )
        return cast(Tokenized, await self._ask(asked))

    async def tokenizer_config(self) -> dict[str, Any]:
        """The target's special tokens, chat template and class, as a ``tokenizer_config.json`` has them."""
        answer = cast(Tokenized, await self._ask(Tokenize(uuid.uuid4().hex, describe=True)))
        found: dict[str, Any] = json.loads(answer.tokenizer or "{}")
        return found

    async def detokenize(self, token_ids: Sequence[int]) -> Tokenized:
        """The text of token ids: ``text`` of all together, ``pieces`` of each."""
        return cast(
            Tokenized, await self._ask(Detokenize(uuid.uuid4().hex, typed("token_ids", token_ids, tuple[int, ...])))
        )

    async def swap(self, old: str, new: str) -> str:
        """Move every stream of drafter ``old`` to drafter ``new``; no token changes.

        With ``"head"`` as ``old``, ``new`` is the directory or hub id of a draft head for the verifier to run
        instead of its own; empty: the one before. It is waited for however long it takes to load.

        Returns:
            A sentence that says how many were moved, or which head drafts now.

        Raises:
            RequestError: There is no such drafter (``not_found``), the head does not fit the target (``bad_request``),
                or this client's key is not an operator's (``forbidden``).
        """
        return await self._order(Swap(uuid.uuid4().hex, typed("old", old, str), typed("new", new, str)))

    async def drain(self, actor_id: str) -> str:
        """Take a drafter out of service: its streams continue with others, then it leaves.

        Returns:
            A sentence that says what was done.

        Raises:
            RequestError: As for ``swap``.
        """
        return await self._order(DrainActor(uuid.uuid4().hex, typed("actor_id", actor_id, str)))

    async def undo(self, version: int) -> str:
        """Make the learner go back from its last promotion to the weights before.

        Args:
            version: The one to leave, as drafters have it in their status.

        Returns:
            A sentence that says what was done.

        Raises:
            RequestError: As for ``swap``; also where there is no learner, or another version is in force by now.
        """
        return await self._order(Undo(uuid.uuid4().hex, typed("version", version, PROMOTED)))


def _nothing() -> None: ...
