"""The client for code without asyncio: :class:`Client` has the calls of :class:`duoactor.AsyncClient`, blocking."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from duoactor.client.async_client import RENDERING, AsyncClient
from duoactor.client.connection import closed, forked
from duoactor.client.options import Options, shows_options
from duoactor.client.request import Completion, Prompt, Turn
from duoactor.client.stream import AsyncStream
from protocols.messages import Chunk, Generate, Rendering, Sampling, StatusReport, Tokenized
from protocols.transport import Network

T = TypeVar("T")


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

    def __init__(
        self,
        address: str | Sequence[str] = "",
        *,
        key: str = "",
        server_key: str = "",
        timeout: float | None = None,
        reconnect_timeout: float | None = None,
        max_retries: int = 2,
        network: Network | None = None,
    ) -> None:
        """Arguments are those of ``AsyncClient``."""
        self._client = AsyncClient(
            address,
            key=key,
            server_key=server_key,
            timeout=timeout,
            reconnect_timeout=reconnect_timeout,
            max_retries=max_retries,
            network=network,
        )
        self._runner = _Runner()
        self._finalizer = weakref.finalize(self, _close, self._runner, self._client)

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
        """Ask for an answer and iterate over its chunks as they come. Give either ``prompt`` or ``messages``.

        Args:
            prompt: A text, or the target's token ids.
            messages: A conversation for the model's chat template: turns with ``role`` and ``content``.

        Returns:
            An iterator over ``Chunk``; the last one has ``finish_reason`` and ``stats``. The request is sent when the
            first chunk is asked for; leaving the loop cancels it.

        Raises:
            RequestError: At once for what cannot be right; while reading, also for what the verifier refuses.
            RefusedError: While reading: the verifier does not accept this client.
            ConnectionLost: While reading: no verifier answers, or none came back in time.
        """
        return Stream(self._client.stream(prompt, messages=messages, **options), self._runner.run)

    @shows_options
    def generate(self, prompt: Prompt = "", *, messages: Sequence[Turn] = (), **options: Unpack[Options]) -> Completion:
        """Ask for an answer and wait for all of it. Arguments and errors are those of ``stream``.

        Example:
            ```python
            answer = client.generate("def factorial(n):", max_tokens=64, temperature=0.7, seed=1)
            print(answer.text, answer.finish_reason, answer.stats.acceptance_histogram)
            ```
        """
        return self._runner.run(self._client.generate(prompt, messages=messages, **options))

    @shows_options
    def chat(self, messages: Sequence[Turn], **options: Unpack[Options]) -> Completion:
        """Ask for the assistant's next turn in a conversation and wait for all of it.

        Example:
            ```python
            answer = client.chat([{"role": "user", "content": "What is speculative decoding?"}])
            ```
        """
        return self._runner.run(self._client.chat(messages, **options))

    def status(self) -> StatusReport:
        """What the verifier is doing now; see ``AsyncClient.status``."""
        return self._runner.run(self._client.status())

    def tokenize(
        self,
        text: str | Sequence[Turn],
        *,
        tools: Sequence[Mapping[str, Any]] | str = (),
        special_tokens: bool = True,
        rendering: Rendering = RENDERING,
    ) -> Tokenized:
        """The target's tokens of a text or a conversation; see ``AsyncClient.tokenize``."""
        asked = self._client.tokenize(text, tools=tools, special_tokens=special_tokens, rendering=rendering)
        return self._runner.run(asked)

    def tokenizer_config(self) -> dict[str, Any]:
        """The target's ``tokenizer_config.json``; see ``AsyncClient.tokenizer_config``."""
        return self._runner.run(self._client.tokenizer_config())

    def detokenize(self, token_ids: Sequence[int]) -> Tokenized:
        """The text of token ids; see ``AsyncClient.detokenize``."""
        return self._runner.run(self._client.detokenize(token_ids))

    def swap(self, old: str, new: str) -> str:
        """Move every stream of drafter ``old`` to drafter ``new``; see ``AsyncClient.swap``."""
        return self._runner.run(self._client.swap(old, new))

    def drain(self, actor_id: str) -> str:
        """Take a drafter out of service; see ``AsyncClient.drain``."""
        return self._runner.run(self._client.drain(actor_id))

    def undo(self, version: int) -> str:
        """Make the learner go back from that version; see ``AsyncClient.undo``."""
        return self._runner.run(self._client.undo(version))


class Stream(Iterator[Chunk]):
    """The chunks of one answer, as they come. The request is sent when the first is asked for.

    ``close``, leaving ``with``, and dropping the last reference cancel the request at once; so does leaving a
    ``for chunk in client.stream(...)`` loop, which holds the only reference. A stream that is kept in a variable but
    not read any more is suspended after ten seconds: the verifier stops working on it, and when it is read again it
    continues where it stopped, with the same text.
    """

    def __init__(self, stream: AsyncStream, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._stream, self._run = stream, run
        self._reading = threading.Lock()

    @property
    def request(self) -> Generate:
        return self._stream.request

    @property
    def sampling(self) -> Sampling:
        """As sent, see ``AsyncStream.sampling``."""
        return self._stream.sampling

    def split(self, chunk: Chunk) -> tuple[str, str]:
        """What the chunk adds to the thoughts of the answer, and to its content; see ``AsyncStream.split``."""
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
        return self._stream.complete(list(self))


class _Runner:
    """An event loop on a thread of its own, which is started at the first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
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
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="duoactor-client", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``last``, cancel whatever else still runs, and end the thread."""
        if os.getpid() != self._pid:
            return  # the thread, and perhaps whoever held the lock, stayed in the parent
        with self._lock:
            was_closed, self._closed = self._closed, True
        if was_closed or self._loop is None or self._thread is None:
            return
        loop = self._loop
        ending = asyncio.run_coroutine_threadsafe(_end(last()), loop)
        ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        if threading.current_thread() is not self._thread:
            self._thread.join()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(last: Coroutine[Any, Any, None]) -> None:
    await last
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _close(runner: _Runner, client: AsyncClient) -> None:
    runner.close(client.aclose)
