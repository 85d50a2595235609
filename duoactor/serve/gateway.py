"""Between the HTTP routes and the verifier: questions become streams, streams become chunks of choices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from duoactor.client.async_client import AsyncClient
from duoactor.client.stream import AsyncStream
from duoactor.serve.errors import ApiError, blamed
from duoactor.serve.metrics import Metrics, Watch
from duoactor.serve.otel import QuestionSpan, Tracing
from duoactor.serve.question import Question
from duoactor.serve.tool_calls.forms import DEFAULT_FORM, FORMS, MISTRAL_MARK
from duoactor.serve.tool_calls.template import taken
from duoactor.serve.tool_calls.use import NO_TOOLS, Calling, ToolUse
from protocols.errors import DuoactorError
from protocols.messages import ChatTurn, Chunk, RequestStats, StatusReport, Tokenized, Welcome

HEALTH_TIMEOUT_S = 2.0
MAX_TRACED = 8  # answers at once: each costs the verifier up to 0.4 ms a round, see actors/verifier/trace.py


@dataclass(frozen=True, slots=True)
class Model:
    """What is served: its names, the tokens of prompt and answer together, and how many token ids there are."""

    names: tuple[str, ...]
    max_context: int
    vocab_size: int
    calling: Calling

    def called(self, name: str) -> str:
        """The name to answer with. ApiError (404) for another model's."""
        if name and name not in self.names:
            detail = f"The model `{name}` does not exist; there is {', '.join(self.names)}."
            raise ApiError(404, detail, param="model", code="model_not_found")
        return name or self.names[0]


class Gateway:
    def __init__(self, client: AsyncClient, names: Sequence[str] = (), tracing: Tracing | None = None) -> None:
        """``client`` connects at its first use, and anew after it lost its verifier; ``names``: of the model, as
        requests may call it; none: the target's own."""
        self.client = client
        self.tracing = tracing
        self.draining = False
        self.metrics = Metrics()
        self._names = tuple(names)
        self._pieces: dict[int, str] = {}
        self._traced = 0  # answers under way that tell how they come about
        self._callings: dict[str, Calling] = {}  # of the verifier's incarnation

    async def aclose(self) -> None:
        """Cancel what is open and disconnect."""
        self.draining = True
        await self.client.aclose()
        if self.tracing is not None:
            self.tracing.close()

    # --- the verifier ------------------------------------------------------------------------------------------------

    async def model(self) -> Model:
        """The model that is served. ApiError (503) while no verifier is there, or we are leaving."""
        if self.draining:
            raise ApiError(503, "this gateway is shutting down; use another")
        with blamed():
            await self.client.connect()
            welcome = self.client.welcome
            calling = await self._calling(welcome)
        return Model(self._names or (welcome.model_id,), welcome.max_context, welcome.vocab_size, calling)

    async def _calling(self, welcome: Welcome) -> Calling:
        found = self._callings.get(welcome.incarnation)
        if found is None:
            form = welcome.tool_form if welcome.tool_form in FORMS else DEFAULT_FORM
            mark = -1
            if form == "mistral":
                marked = await self.client.tokenize(MISTRAL_MARK)
                ids = dict(zip(marked.pieces, marked.token_ids, strict=True))
                mark = ids.get(MISTRAL_MARK, mark)
            template = welcome.response_template
            if template and not await asyncio.to_thread(taken, template):
                template = ""
            found = Calling(form, template, mark)
            self._callings = {welcome.incarnation: found}
        return found

    async def status(self) -> StatusReport:
        """ApiError (503) unless the verifier answers now."""
        await self.model()
        try:
            with blamed():
                return await asyncio.wait_for(self.client.status(), HEALTH_TIMEOUT_S)
        except TimeoutError:
            raise ApiError(503, "the verifier does not answer; see whether it still runs, and try again") from None

    async def swap(self, old: str, new: str) -> str:
        """Move every stream of one drafter to another; a sentence that says how many."""
        await self.model()
        with blamed():
            return await self.client.swap(old, new)

    async def drain(self, actor_id: str) -> str:
        await self.model()
        with blamed():
            return await self.client.drain(actor_id)

    async def scrape(self) -> bytes:
        """What Prometheus reads; also while no verifier answers."""
        report: StatusReport | None = None
        with contextlib.suppress(ApiError):
            report = await self.status()
        return self.metrics.expose(report)

    # --- questions ---------------------------------------------------------------------------------------------------

    def ask(self, question: Question, model: Model, begin: Callable[[], QuestionSpan] | None = None) -> Choices:
        """``begin``: of the span that follows the answers, called once they can be asked for."""
        question.check(model.vocab_size)
        if question.trace and self._traced >= MAX_TRACED:
            raise ApiError(429, f"{MAX_TRACED} answers are being traced already; try again later, or without trace")
        structure, param = question.structure(model.calling)
        with blamed(param):
            streams = [
                self.client.stream(
                    one.prompts[0],
                    sampling=one.sampling,
                    method=one.how.wanted_method,
                    num_speculative_tokens=one.how.num_speculative_tokens,
                    cache_salt=one.how.cache_salt,
                    priority=one.how.priority,
                    deadline_ms=one.how.deadline_ms,
                    tools=one.tools.described,
                    structured_outputs=structure,
                    trace=one.trace,
                )
                for one in question.alone()
            ]
        count = self._count_traced if question.trace else None
        return Choices(self.metrics, streams, param, count, begin and begin())

    def _count_traced(self, change: int) -> None:
        self._traced += change

    async def tokenize(self, text: str | Sequence[ChatTurn], tools: ToolUse = NO_TOOLS) -> Tokenized:
        with blamed():
            return await self.client.tokenize(text, tools=tools.described)

    async def detokenize(self, token_ids: Sequence[int]) -> Tokenized:
        with blamed():
            return await self.client.detokenize(token_ids)

    async def pieces_of(self, chunks: Iterable[Chunk]) -> Mapping[int, str]:
        """The text of every token that the chunks report beside their own text; each is asked for once."""
        known = self._pieces
        missing: set[int] = set()
        for chunk in chunks:
            for token, found in zip(chunk.token_ids, chunk.logprobs, strict=False):
                missing.update(one for one in (token, *found.top_ids) if one not in known)
            if chunk.trace is not None:
                missing.update(one for one in chunk.trace.tokens if one not in known)
        if missing:
            answer = await self.detokenize(sorted(missing))
            known.update(zip(answer.token_ids, answer.pieces, strict=True))
        return known


class Choices:
    """The answers to one question: enter it, then iterate over ``(index, chunk)`` as they come. Leaving it cancels
    what is open. Raises ApiError."""

    def __init__(
        self,
        metrics: Metrics,
        streams: Sequence[AsyncStream],
        structure: str = "",
        count: Callable[[int], None] | None = None,
        span: QuestionSpan | None = None,
    ) -> None:
        """``structure``: the parameter that says what the answer must be; ``count`` is told of the beginning (1) and
        of the end (-1)."""
        self._span = span
        self._streams = streams
        self._structure = structure
        self._count = count or _uncounted
        self._watch = Watch(metrics)
        self._stats: dict[int, RequestStats] = {}
        self._readers: list[asyncio.Task[None]] = []
        # Bounded: a stream whose chunks nobody takes is suspended, and not gathered here.
        self._queue: asyncio.Queue[tuple[int, Chunk] | DuoactorError] = asyncio.Queue(64 * len(streams))

    @property
    def stats(self) -> list[RequestStats]:
        """Of every answer, once all have ended; before that none."""
        return [self._stats[i] for i in sorted(self._stats)] if len(self._stats) == len(self._streams) else []

    async def __aenter__(self) -> Choices:
        self._count(1)
        if len(self._streams) > 1:
            self._readers = [asyncio.create_task(self._read(i, one)) for i, one in enumerate(self._streams)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count(-1)
        if self._span is not None:
            self._span.end(self.stats, error)
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
        with blamed(self._structure):
            index, chunk = await self._next()
        self._watch.chunk(index, chunk)
        if self._span is not None:
            self._span.chunk(index, chunk)
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
                await self._queue.put((index, chunk))
        except DuoactorError as error:
            await self._queue.put(error)


def _uncounted(change: int) -> None: ...
