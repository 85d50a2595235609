"""The answer that a caller iterates over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

from msgspec.structs import replace

from duoactor.client.connection import Connection, Mailbox
from duoactor.client.request import Completion, complete, defaulted
from duoactor.thoughts import Thoughts, thoughts_in
from protocols.errors import DuoactorError
from protocols.messages import DEFAULTED, NO_THOUGHTS, UNCHANGED, Chunk, FinishReason, Generate, Sampling, Welcome


class AsyncStream(AsyncIterator[Chunk]):
    """The chunks of one answer, as they come. The request is sent when the first is asked for.

    ``aclose``, leaving ``async with``, and dropping the last reference cancel the request at once. Chunks that were not
    read wait in memory. Once they are 64, the verifier stops work on the request; when all are read, it goes on.
    """

    def __init__(
        self, request: Generate, connect: Callable[[], Awaitable[Connection]], unsaid: Collection[str] = ()
    ) -> None:
        """``unsaid``: values of its sampling that are the model's to choose."""
        self.request = request
        self._connect, self._unsaid = connect, unsaid
        self._thinking = NO_THOUGHTS  # the model's thoughts
        self._thoughts: Thoughts | None = None  # the answer's thoughts, as far as it was split
        self._connection: Connection | None = None
        self._mailbox: Mailbox | None = None
        self._over = False

    @property
    def sampling(self) -> Sampling:
        """The sampling as sent, from the first chunk on: with the model's own defaults, and the drawn seed, if none was
        given."""
        return self.request.sampling

    def split(self, chunk: Chunk) -> tuple[str, str]:
        """The chunk's piece of the thoughts, and of the content. Chunks are given in their order."""
        reader = self._thoughts = self._thoughts or thoughts_in(self.request, self._thinking)
        thought, said = reader.feed(chunk.text)
        if chunk.finish_reason is not None:
            more, rest = reader.end(chunk.finish_reason is FinishReason.LENGTH)
            return thought + more, said + rest
        return thought, said

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Chunk:
        while not self._over:
            if (chunk := self.take()) is not None:
                return chunk
            await self.wait()
        raise StopAsyncIteration

    @property
    def unread(self) -> int:
        """Chunks that have come, and the error after them."""
        return 0 if self._mailbox is None else self._mailbox.unread

    def take(self) -> Chunk | None:
        """The next chunk if it has come; safe in any thread. Raises the error that ended the stream."""
        if self._mailbox is None:
            return None
        try:
            news = self._mailbox.take()
        except DuoactorError:
            self._over = True
            raise
        if not isinstance(news, Chunk):
            return None
        self._over = self._over or news.finish_reason is not None
        return news

    async def wait(self) -> None:
        """Wait until there is something to take, or the stream is closed. Cancelling it loses nothing."""
        if self._mailbox is None:
            connection = await self._connect()
            if self._mailbox is None and not self._over:
                self._settle(connection.welcome)
                self._connection, self._mailbox = connection, connection.start(self.request)
        if self._mailbox is not None:
            await self._mailbox.wait()

    def _settle(self, welcome: Welcome) -> None:
        """Fill in what the request leaves to the model."""
        sampling, self._thinking = self.request.sampling, welcome.thinking
        if welcome.sampling != UNCHANGED:
            sampling = defaulted(sampling, welcome.sampling, set(DEFAULTED).difference(self._unsaid))
        if self.request.messages and self._thinking.special:
            sampling = replace(sampling, skip_special_tokens=False)  # they mark the thoughts
        self.request = replace(self.request, sampling=sampling)

    def complete(self, chunks: Sequence[Chunk]) -> Completion:
        """The last chunks of an answer as one."""
        return complete(chunks, self.sampling, thoughts_in(self.request, self._thinking))

    @property
    def over(self) -> bool:
        return self._over

    def cancel(self) -> None:
        """Cancel the request unless it has ended; safe in any thread."""
        self._over = True
        if self._connection is not None:
            self._connection.cancel_soon(self.request.rid)

    async def aclose(self) -> None:
        self._over = True
        if self._connection is not None:
            self._connection.cancel(self.request.rid)

    def __del__(self) -> None:
        if self._connection is not None and not self._over:
            self._connection.cancel_soon(self.request.rid)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def completion(self) -> Completion:
        """Read the rest and return it as one answer, without the chunks that were read before."""
        return self.complete([chunk async for chunk in self])
