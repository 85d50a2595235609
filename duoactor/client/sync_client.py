"""The client for code without asyncio: the calls of :class:`duoactor.AsyncClient`, blocking.

with Client() as client:
    for chunk in client.stream("Once upon a time", max_tokens=64):
        print(chunk.text, end="", flush=True)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from duoactor.client.async_client import AsyncClient
from duoactor.client.request import Completion, Prompt
from duoactor.client.stream import Stream
from protocols.errors import ConnectionLost
from protocols.messages import ChatTurn, Chunk, StatusReport, Tokenized

T = TypeVar("T")


class Client:
    """:class:`AsyncClient` for code without asyncio: the same calls, blocking. Usable from several threads.

    A thread of its own keeps the connection alive while the caller is busy elsewhere.
    """

    def __init__(self, address: str = "", **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="duoactor-client", daemon=True)
        self._thread.start()
        self._client = AsyncClient(address, **options)

    @property
    def address(self) -> str:
        return self._client.address

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise ConnectionLost("the client was closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def __enter__(self) -> Client:
        try:
            self._run(self._client.connect())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is open and disconnect."""
        if self._loop.is_closed():
            return
        self._run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def stream(self, prompt: Prompt = "", **options: Any) -> Iterator[Chunk]:
        """Chunks as they come; leaving the loop cancels the request. Options: :meth:`AsyncClient.stream`."""
        stream = self._run(self._open(prompt, options))
        try:
            while True:
                try:
                    yield self._run(stream.__anext__())
                except StopAsyncIteration:
                    return
        finally:
            if not self._loop.is_closed():
                self._run(stream.aclose())

    async def _open(self, prompt: Prompt, options: Mapping[str, Any]) -> Stream:
        return self._client.stream(prompt, **options)

    def generate(self, prompt: Prompt = "", **options: Any) -> Completion:
        """The whole answer at once."""
        return self._run(self._client.generate(prompt, **options))

    def chat(self, messages: Sequence[ChatTurn | Mapping[str, str]], **options: Any) -> Completion:
        """The assistant's next turn."""
        return self._run(self._client.chat(messages, **options))

    def status(self) -> StatusReport:
        """See :meth:`AsyncClient.status`."""
        return self._run(self._client.status())

    def tokenize(self, text: str | Sequence[ChatTurn | Mapping[str, str]]) -> Tokenized:
        """See :meth:`AsyncClient.tokenize`."""
        return self._run(self._client.tokenize(text))

    def detokenize(self, token_ids: Sequence[int]) -> Tokenized:
        """See :meth:`AsyncClient.detokenize`."""
        return self._run(self._client.detokenize(token_ids))

    def swap(self, old: str, new: str) -> str:
        """See :meth:`AsyncClient.swap`."""
        return self._run(self._client.swap(old, new))

    def drain(self, actor_id: str) -> str:
        """See :meth:`AsyncClient.drain`."""
        return self._run(self._client.drain(actor_id))
