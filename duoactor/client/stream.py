"""The answer that a caller iterates over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from duoactor.client.request import Completion, complete
from protocols.errors import DuoactorError
from protocols.messages import Chunk, Generate, Sampling


class Stream(AsyncIterator[Chunk]):
    """Chunks of one answer, as they come. Closing it, or dropping it, cancels the request.

    Chunks wait in memory until they are read: at most one per generated token.
    """

    def __init__(
        self, request: Generate, begin: Callable[[Stream], Awaitable[None]], end: Callable[[Stream], None]
    ) -> None:
        """``begin`` sends the request unless it was sent already; ``end`` cancels it unless it has ended."""
        self.request = request
        self._begin, self._end = begin, end
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self._over = False

    @property
    def sampling(self) -> Sampling:
        return self.request.sampling

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Chunk:
        if self._over:
            raise StopAsyncIteration
        await self._begin(self)
        news = await self.queue.get()
        if isinstance(news, DuoactorError):
            self._over = True
            self._end(self)
            raise news
        if news.finish_reason is not None:
            self._over = True
            self._end(self)
        chunk: Chunk = news
        return chunk

    async def aclose(self) -> None:
        self._over = True
        self._end(self)

    def __del__(self) -> None:
        self._end(self)

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def completion(self) -> Completion:
        """Read to the end."""
        return complete([chunk async for chunk in self], self.sampling)
