"""The client for code without asyncio: :class:`Client` has the calls of :class:`duoactor.AsyncClient`, blocking."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from duoactor.client.async_client import AsyncClient
from duoactor.client.connection import closed, forked
from duoactor.client.options import ClientOptions, Options, shows_client_options, shows_options
from duoactor.client.request import Completion, Prompt, Turn
from duoactor.client.stream import AsyncStream
from protocols.errors import ConnectionLost
from protocols.messages import Chunk, Generate, Sampling

T = TypeVar("T")
P = ParamSpec("P")


def blocking(
    call: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """The same call for :class:`Client`, with its signature and documentation."""

    def run(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.run(call(self._client, *args, **kwargs))

    functools.update_wrapper(run, call)
    run.__doc__ = (inspect.getdoc(call) or "").replace("await ", "")
    return run


class Client:
    """The client for code without asyncio: the calls of ``AsyncClient``, blocking. Several threads may use it at once.

    A background thread keeps the connection alive while the caller does something else. It ends with ``close``, at the
    end of ``with``, with the last reference to the client, or with the program. Every error is a ``DuoactorError``.

    Example:
        ```python
        with Client() as client:
            for chunk in client.stream("def factorial(n):", max_tokens=64):
                print(chunk.text, end="", flush=True)
        ```
    """

    @shows_client_options
    def __init__(self, address: str | Sequence[str] = "", **options: Unpack[ClientOptions]) -> None:
        """``address``: as for ``AsyncClient``."""
        self._client = AsyncClient(address, **options)
        self._runner = Runner()
        self._finalizer = weakref.finalize(self, self._runner.close, self._client.aclose)

    @property
    def address(self) -> str:
        return self._client.address

    def __enter__(self) -> Client:
        try:
            self._runner.run(self._client.connect())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all open requests and disconnect. Calls that wait in other threads raise ConnectionLost. The client
        cannot be used again."""
        self._finalizer()

    @shows_options
    def stream(self, prompt: Prompt = "", *, messages: Sequence[Turn] = (), **options: Unpack[Options]) -> Stream:
        """Ask for an answer and iterate over its chunks as they come. Arguments and errors are those of
        ``AsyncClient.stream``."""
        return Stream(self._client.stream(prompt, messages=messages, **options), self._runner.run)

    generate = blocking(AsyncClient.generate)
    """Ask for an answer and wait for all of it."""
    chat = blocking(AsyncClient.chat)
    """Ask for the assistant's next turn in a conversation and wait for all of it."""
    status = blocking(AsyncClient.status)
    """The verifier's requests, drafters, counters and budgets."""
    tokenize = blocking(AsyncClient.tokenize)
    """The target's tokens of a text or a conversation."""
    tokenizer_config = blocking(AsyncClient.tokenizer_config)
    """The target's special tokens, chat template and class."""
    detokenize = blocking(AsyncClient.detokenize)
    """The text of token ids."""
    swap = blocking(AsyncClient.swap)
    """Move every stream of one drafter to another."""
    drain = blocking(AsyncClient.drain)
    """Take a drafter out of service."""
    undo = blocking(AsyncClient.undo)
    """Make the learner go back from its last promotion."""


class Stream(Iterator[Chunk]):
    """The chunks of one answer, as they come. The request is sent when the first is asked for.

    ``close``, leaving ``with``, and dropping the last reference cancel the request at once; so does leaving a
    ``for chunk in client.stream(...)`` loop, which holds the only reference.
    """

    def __init__(self, stream: AsyncStream, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._stream, self._run = stream, run
        self._reading = threading.Lock()

    @property
    def request(self) -> Generate:
        return self._stream.request

    @property
    def sampling(self) -> Sampling:
        """The sampling as sent, see ``AsyncStream.sampling``."""
        return self._stream.sampling

    def split(self, chunk: Chunk) -> tuple[str, str]:
        """The chunk's piece of the thoughts, and of the content; see ``AsyncStream.split``."""
        return self._stream.split(chunk)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        with self._reading:
            while not self._stream.over:
                if (chunk := self._stream.take()) is not None:
                    return chunk
                self._run(self._stream.wait())
        raise StopIteration

    def close(self) -> None:
        """Cancel the request unless it has ended. Iterating ends, also in another thread."""
        self._stream.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def completion(self) -> Completion:
        """Read the rest and return it as one answer, without the chunks that were read before."""
        return self.complete(list(self))

    def complete(self, chunks: Sequence[Chunk]) -> Completion:
        """Chunks up to the last as one answer."""
        return self._stream.complete(chunks)


class Runner:
    """An event loop on a thread of its own, which is started at the first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending: concurrent.futures.Future[Callable[[], Coroutine[Any, Any, None]]] = concurrent.futures.Future()
        self._closed = False
        self._pid = os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``; interrupted (Ctrl-C), it is cancelled."""
        try:
            future = self._begin(work)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise closed() from None
        except BaseException:
            future.cancel()
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if os.getpid() != self._pid:
            raise forked()
        with self._lock:  # what begins after close would never end
            if self._closed:
                raise closed()
            self._loop = self._loop or self._start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _start(self) -> asyncio.AbstractEventLoop:
        """A loop on a running thread. ConnectionLost where this process may have no further files or threads."""
        loop: asyncio.AbstractEventLoop | None = None
        try:
            loop = asyncio.new_event_loop()  # here: an error on the thread would be lost
            thread = threading.Thread(target=self._run, args=(loop,), name="duoactor-client", daemon=True)
            thread.start()
        except (OSError, RuntimeError) as error:
            if loop is not None:
                loop.close()
            raise ConnectionLost(f"the client cannot begin ({error}); close what this process needs no more") from None
        self._thread = thread
        return loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Serve until :meth:`close` says what comes last; the runner then cancels whatever else still runs."""
        last = await asyncio.wrap_future(self._ending)
        await last()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``last``, cancel whatever else still runs, and end the thread."""
        if os.getpid() != self._pid:
            return  # the thread, and perhaps whoever held the lock, stayed in the parent
        with self._lock:
            was_closed, self._closed = self._closed, True
        if was_closed or self._thread is None:
            return
        self._ending.set_result(last)
        if threading.current_thread() is not self._thread:
            self._thread.join()
