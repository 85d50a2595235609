"""Between the HTTP routes and the verifier: questions become streams, streams become chunks of choices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence

from duoactor.client.async_client import AsyncClient
from duoactor.client.stream import AsyncStream
from duoactor.serve import errors
from duoactor.serve.connection import Connection
from duoactor.serve.errors import ApiError
from duoactor.serve.metrics import Metrics, Watch
from duoactor.serve.question import Question
from protocols.errors import DuoactorError
from protocols.messages import ChatTurn, Chunk, RequestStats, StatusReport, Tokenized

HEALTH_TIMEOUT_S = 2.0


class Gateway:
    def __init__(self, connection: Connection, names: Sequence[str] = ()) -> None:
        """``names``: of the model, as requests may call it; none: the target's own."""
        self.connection = connection
        self.draining = False
        self.metrics = Metrics()
        self._names = tuple(names)
        self._pieces: dict[int, str] = {}

    async def scrape(self) -> bytes:
        """What Prometheus reads; also while no verifier answers."""
        report: StatusReport | None = None
        with contextlib.suppress(ApiError):
            report = await self.status()
        return self.metrics.expose(report)

    async def status(self) -> StatusReport:
        """ApiError (503) unless the verifier answers now."""
        if self.draining:
            raise ApiError(503, "this gateway is shutting down; use another")
        try:
            return await asyncio.wait_for(self.client.status(), HEALTH_TIMEOUT_S)
        except TimeoutError:
            raise ApiError(503, "the verifier does not answer; is it still running?") from None
        except DuoactorError as error:
            raise self.blamed(error) from None

    def blamed(self, error: DuoactorError) -> ApiError:
        self.connection.report(error)
        return errors.of(error)

    # --- the model ---------------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        return self._names or (self.client.welcome.model_id,)

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together."""
        return self.client.welcome.max_context

    def choose_model(self, name: str) -> str:
        """The name to answer with. ApiError (404) for another model's."""
        names = self.names
        if name and name not in names:
            detail = f"The model `{name}` does not exist; there is {', '.join(names)}."
            raise ApiError(404, detail, param="model", code="model_not_found")
        return name or names[0]

    @property
    def client(self) -> AsyncClient:
        """ApiError (503) while there is none."""
        try:
            return self.connection.client
        except DuoactorError as error:
            raise self.blamed(error) from None

    # --- questions ---------------------------------------------------------------------------------------------------

    def ask(self, question: Question) -> Choices:
        if self.draining:
            raise ApiError(503, "this gateway is shutting down; use another")
        client = self.client
        question.check(client.welcome.vocab_size)
        try:
            streams = [
                client.stream(
                    one.prompts[0],
                    sampling=one.sampling,
                    method=one.method,
                    num_speculative_tokens=one.num_speculative_tokens,
                )
                for one in question.alone()
            ]
        except DuoactorError as error:
            raise self.blamed(error) from None
        return Choices(self, streams)

    async def tokenize(self, text: str | Sequence[ChatTurn]) -> Tokenized:
        try:
            return await self.client.tokenize(text)
        except DuoactorError as error:
            raise self.blamed(error) from None

    async def detokenize(self, token_ids: Sequence[int]) -> Tokenized:
        try:
            return await self.client.detokenize(token_ids)
        except DuoactorError as error:
            raise self.blamed(error) from None

    async def pieces_of(self, chunks: Iterable[Chunk]) -> Mapping[int, str]:
        """The text of every token that the chunks report log-probabilities of; each is asked for once."""
        known = self._pieces
        missing: set[int] = set()
        for chunk in chunks:
            for token, found in zip(chunk.token_ids, chunk.logprobs, strict=False):
                missing.update(one for one in (token, *found.top_ids) if one not in known)
        if missing:
            answer = await self.detokenize(sorted(missing))
            known.update(zip(answer.token_ids, answer.pieces, strict=True))
        return known


class Choices:
    """The answers to one question: enter it, then iterate over ``(index, chunk)`` as they come. Leaving it cancels
    what is open. Raises ApiError."""

    def __init__(self, gateway: Gateway, streams: Sequence[AsyncStream]) -> None:
        self._gateway = gateway
        self._streams = streams
        self._watch = Watch(gateway.metrics)
        self._stats: dict[int, RequestStats] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[tuple[int, Chunk] | DuoactorError] = asyncio.Queue()

    @property
    def stats(self) -> list[RequestStats]:
        """Of every answer, once all have ended; before that none."""
        return [self._stats[i] for i in sorted(self._stats)] if len(self._stats) == len(self._streams) else []

    async def __aenter__(self) -> Choices:
        if len(self._streams) > 1:
            self._readers = [asyncio.create_task(self._read(i, one)) for i, one in enumerate(self._streams)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()

    def __aiter__(self) -> Choices:
        return self

    async def __anext__(self) -> tuple[int, Chunk]:
        if len(self._stats) == len(self._streams):
            raise StopAsyncIteration
        try:
            index, chunk = await self._next()
        except DuoactorError as error:
            raise self._gateway.blamed(error) from None
        self._watch.chunk(index, chunk)
        if chunk.stats is not None:
            self._stats[index] = chunk.stats
            if self.stats:
                self._watch.end()
        return index, chunk

    async def _next(self) -> tuple[int, Chunk]:
        if not self._readers:
            return 0, await anext(self._streams[0])
        item = await self._queue.get()
        if isinstance(item, DuoactorError):
            raise item
        return item

    async def _read(self, index: int, stream: AsyncStream) -> None:
        try:
            async for chunk in stream:
                self._queue.put_nowait((index, chunk))
        except DuoactorError as error:
            self._queue.put_nowait(error)
