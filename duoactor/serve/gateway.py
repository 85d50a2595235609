"""Between the HTTP routes and the verifier: questions become streams, streams become chunks of choices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, TypeGuard, TypeVar

import msgspec

from duoactor.client.async_client import AsyncClient
from duoactor.client.stream import AsyncStream
from duoactor.serve.errors import ApiError, bad, blamed
from duoactor.serve.fill import FILE, KNOWN, PROJECT, FillMarks
from duoactor.serve.metrics import Metrics, RequestTimer
from duoactor.serve.otel import QuestionSpan, Tracing
from duoactor.serve.question import Prompt, Question
from duoactor.serve.thinking import Wish
from duoactor.serve.tool_calls.forms import DEFAULT_FORM, FORMS
from duoactor.serve.tool_calls.template import taken
from duoactor.serve.tool_calls.use import NO_TOOLS, Calling, ToolUse
from duoactor.serve.trace import Piece, Pieces
from protocols.messages import (
    UNCHANGED,
    ChatTurn,
    Chunk,
    Rendering,
    RequestStats,
    Sampling,
    StatusReport,
    Tokenized,
    Welcome,
)

T = TypeVar("T")
HEALTH_TIMEOUT_S = 0.9  # limit for a probe: those of orchestrators wait one second
REPORT_S = 0.05  # seconds between two reports: the verifier refuses who asks as fast as paths that need no key let
MAX_TRACED = 8  # answers at once: each costs the verifier up to 0.4 ms a round, see actors/verifier/trace.py


@dataclass(frozen=True, slots=True)
class Model:
    """The served model: its names, the tokens of prompt and answer together, and the number of token ids."""

    names: tuple[str, ...]
    max_context: int
    vocab_size: int
    calling: Calling
    sampling: Sampling = UNCHANGED  # sampling of requests that name none, as its publisher wants it
    dtype: str = ""  # type of its weights
    identity: str = ""  # see ``Welcome``

    def sampling_by(self, usual: Sampling) -> Sampling:
        """The sampling of requests that name none. ``usual``: the API's, for models without a publisher's sampling."""
        return usual if self.sampling == UNCHANGED else self.sampling

    def called(self, name: str) -> str:
        """The name to answer with. ApiError (404) for another model's."""
        if name and not named(name, self.names):
            detail = f"The model `{name}` does not exist; there is {', '.join(self.names)}."
            raise ApiError(404, detail, param="model", code="model_not_found")
        return name or self.names[0]


def named(name: str, names: Collection[str]) -> str:
    """The one of ``names`` that is meant, with or without Ollama's tag for the default; "": none."""
    return next((one for one in (name, name.removesuffix(":latest")) if one in names), "")


class Gateway:
    def __init__(
        self,
        client: AsyncClient,
        names: Sequence[str] = (),
        tracing: Tracing | None = None,
        escape: bool = False,
        defaults: bool = True,
    ) -> None:
        """``client`` connects at its first use, and anew after it lost its verifier; ``names``: of the model, as
        requests may call it; none: the target's own; ``escape``: names of special tokens in messages are plain text;
        ``defaults``: requests that name no sampling get the model's own."""
        self.client = client
        self.tracing = tracing
        self._escape, self._defaults = escape, defaults
        self.draining = False
        self.metrics = Metrics()
        self._names = tuple(names)
        self._pieces: dict[str, dict[int, Piece]] = {}  # known pieces by the verifier's incarnation; only one stays
        self._callings: dict[str, Calling] = {}
        self._marks: dict[str, FillMarks | None] = {}
        self._report: asyncio.Task[StatusReport]
        self._reported = 0.0  # when the last report was asked for, or the next will be
        self._open: set[Choices] = set()
        self._idle = asyncio.Event()  # nothing is open
        self._idle.set()

    async def aclose(self, grace_s: float = 0.0) -> None:
        """Take no more questions, give answers under way some time to end, fail the others with a 503, disconnect."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
        await self.client.aclose()
        if self.tracing is not None:
            self.tracing.close()

    @contextlib.contextmanager
    def blamed(self, structure: str = "") -> Iterator[None]:
        """See :func:`duoactor.serve.errors.blamed`; what fails because this gateway leaves is blamed on that."""
        try:
            with blamed(structure):
                yield
        except ApiError as error:
            raise leaving() if self.draining and error.status == 503 else error from None

    # --- the verifier ------------------------------------------------------------------------------------------------

    async def model(self) -> Model:
        """The model that is served. ApiError (503) while no verifier is there, or we are leaving."""
        if self.draining:
            raise leaving()
        with self.blamed():
            await self.client.connect()
            welcome = self.client.welcome
            calling = await self._calling(welcome)
        names = self._names or (welcome.model_id,)
        sampling = welcome.sampling if self._defaults else UNCHANGED
        size = (welcome.max_context, welcome.vocab_size)
        return Model(names, *size, calling, sampling, welcome.dtype, welcome.identity)

    async def _calling(self, welcome: Welcome) -> Calling:
        found = self._callings.get(welcome.incarnation)
        if found is None:
            form = welcome.tool_form if welcome.tool_form in FORMS else DEFAULT_FORM
            mark = -1
            if form == "mistral":  # a grammar takes special tokens by their ids
                marked = await self.client.tokenize(FORMS[form].mark)
                ids = dict(zip(marked.pieces, marked.token_ids, strict=True))
                mark = ids.get(FORMS[form].mark, mark)
            template = welcome.response_template
            if template and not await asyncio.to_thread(taken, template):
                template = ""
            found = Calling(form, template, mark, welcome.thinking)
            self._callings = {welcome.incarnation: found}
        return found

    async def marks(self) -> FillMarks | None:
        """The tokenizer's marks for filling a gap; None: it has none."""
        incarnation = self.client.welcome.incarnation
        if incarnation not in self._marks:
            known = [one for one in KNOWN if await self._special(one.before, one.behind, one.middle)]
            if known and await self._special(PROJECT, FILE):
                known = [replace(known[0], project=True)]
            self._marks = {incarnation: known[0] if known else None}
        return self._marks[incarnation]

    async def _special(self, *names: str) -> bool:
        """Whether each of them is one token."""
        found = await self.tokenize("".join(names), special_tokens=False)
        return found.pieces == names

    async def asked(self, call: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """A call of the client, once it is connected, with its errors as ApiError."""
        await self.model()
        with self.blamed():
            return await call(self.client)

    async def status(self) -> StatusReport:
        """The verifier's status, one report for all who wait for the next. ApiError (503) unless it answers now."""
        now = asyncio.get_running_loop().time()
        if now >= self._reported:
            self._reported = max(now, self._reported + REPORT_S)
            self._report = asyncio.create_task(self._asked_at(self._reported - now))
            self._report.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait
        try:
            return await asyncio.shield(self._report)
        except TimeoutError:
            raise ApiError(503, "the verifier does not answer; see whether it still runs, and try again") from None

    async def _asked_at(self, later_s: float) -> StatusReport:
        await asyncio.sleep(later_s)
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            return await self.asked(AsyncClient.status)

    async def scrape(self) -> bytes:
        """The metrics for Prometheus; also while no verifier answers."""
        report: StatusReport | None = None
        with contextlib.suppress(ApiError):
            report = await self.status()
        return self.metrics.expose(report)

    # --- questions ---------------------------------------------------------------------------------------------------

    def ask(self, question: Question, model: Model, begin: Callable[[], QuestionSpan] | None = None) -> Choices:
        """Streams for a question. ``begin``: starts the span of its trace."""
        question = question.defaulted(model.sampling_by(question.usual))
        question.check(model.vocab_size)
        structure, param = question.structure(model.calling)
        rendering = self.rendering(question.rendering, question.thinking or Wish(), model.calling)
        with blamed(param):
            streams = [
                self.client.stream(
                    one.prompts[0][:1] if one.scores else one.prompts[0],
                    sampling=one.sampling,
                    method=one.how.wanted_method,
                    num_speculative_tokens=one.how.num_speculative_tokens,
                    cache_salt=one.how.cache_salt,
                    priority=one.how.priority,
                    deadline_ms=one.how.deadline_ms,
                    tools=one.tools.described if _is_conversation(one.prompts[0]) else "",
                    structured_outputs=structure,
                    trace=one.trace,
                    rendering=rendering,
                    dictation=one.dictation(model.calling),
                    prediction=one.prediction,
                )
                for one in question.alone(model.calling)
            ]
        return Choices(self, streams, question.trace, param, begin, question.stops_shown)

    @property
    def traced(self) -> int:
        """Answers under way that tell how they come about."""
        return sum(len(one.streams) for one in self._open if one.traced)

    def enter(self, choices: Choices) -> None:
        """Count the answers as open. ApiError (429) if too many are traced already."""
        if choices.traced and self.traced + len(choices.streams) > MAX_TRACED:
            detail = f"at most {MAX_TRACED} answers are traced at once, and {self.traced} are; try again later"
            raise ApiError(429, f"{detail}, or without trace", param="trace")
        self._open.add(choices)
        self._idle.clear()

    def leave(self, choices: Choices) -> None:
        self._open.discard(choices)
        if not self._open:
            self._idle.set()

    def rendering(self, wanted: Rendering, thinking: Wish, calling: Calling) -> Rendering:
        return msgspec.structs.replace(wanted, plain=self._escape, variables=thinking.rendered(calling.thinking))

    async def tokenize(self, text: str | Sequence[ChatTurn], tools: ToolUse = NO_TOOLS, **how: Any) -> Tokenized:
        """``how``: as the client takes it."""
        with self.blamed():
            return await self.client.tokenize(text, tools=tools.described, **how)

    async def ids_of(self, prompt: Prompt, question: Question, model: Model) -> tuple[int, ...]:
        """A prompt's tokens, as the question has it rendered."""
        if _is_ids(prompt):
            return prompt
        shown = self.rendering(question.rendering, question.thinking or Wish(), model.calling)
        return (await self.tokenize(prompt, question.tools, rendering=shown)).token_ids  # type: ignore[arg-type]  # no ids

    async def cut(self, question: Question, model: Model) -> tuple[Question, list[tuple[int, ...]]]:
        """The question with its prompts cut to their last tokens, and the prompts' token ids."""
        found = [await self.ids_of(prompt, question, model) for prompt in question.prompts]
        most = question.cut.most
        if most == -1:
            most = max(1, model.max_context - (question.asked_for or 1))
        if not most or all(len(ids) <= most for ids in found):
            return question, found
        if question.rendering.continue_final:
            raise bad("truncate_prompt_tokens", "cannot be had with a message that is continued")
        found = [ids[-most:] for ids in found]
        return replace(question, prompts=tuple(found)), found

    async def spelt(self, question: Question) -> tuple[Question, list[Tokenized]]:
        """The question with its prompts as token ids, and their texts."""
        found: list[Tokenized] = []
        for prompt in question.prompts:
            if isinstance(prompt, str):
                found.append(msgspec.structs.replace(await self.tokenize(prompt), text=prompt))
            else:
                found.append(await self.detokenize(prompt))  # type: ignore[arg-type]  # no conversation is scored
        return replace(question, prompts=tuple(one.token_ids for one in found)), found

    async def detokenize(self, token_ids: Sequence[int]) -> Tokenized:
        with self.blamed():
            return await self.client.detokenize(token_ids)

    async def pieces_of(self, chunks: Iterable[Chunk], also: Iterable[int] = ()) -> Pieces:
        """Every token that the chunks report besides their text, and others; each is asked for once."""
        wanted = set(also)
        for chunk in chunks:
            for token, found in zip(chunk.token_ids, chunk.logprobs, strict=False):
                wanted.update((token, *found.top_ids))
            if chunk.trace is not None:
                wanted.update(chunk.trace.tokens)
        if not wanted:
            return {}
        with self.blamed():
            incarnation = self.client.welcome.incarnation
        if incarnation not in self._pieces:
            self._pieces = {incarnation: {}}
        known = self._pieces[incarnation]
        if missing := sorted(wanted - known.keys()):
            answer = await self.detokenize(missing)
            octets = answer.octets if len(answer.octets) == len(answer.pieces) else [b""] * len(answer.pieces)
            for token, text, own in zip(answer.token_ids, answer.pieces, octets, strict=True):
                known[token] = Piece(text, own or text.encode())
        return known


class Choices:
    """The answers to one question: enter it, then iterate over ``(index, chunk)`` as they come. Leaving it cancels
    what is open. Raises ApiError."""

    def __init__(
        self,
        gateway: Gateway,
        streams: Sequence[AsyncStream],
        traced: bool = False,
        structure: str = "",
        begin: Callable[[], QuestionSpan] | None = None,
        stops_shown: bool = False,
    ) -> None:
        """``structure``: the parameter that says what the answer must be; ``begin``: of its span; ``stops_shown``: see
        :class:`Question`."""
        self._gateway = gateway
        self.streams, self.traced = streams, traced
        self._stops_shown = stops_shown
        self.prompt_tokens = 0  # length of the longest prompt that is known
        self._begin = begin
        self._span: QuestionSpan | None = None
        self._structure = structure
        self._watch = RequestTimer(gateway.metrics)
        self._stats: dict[int, RequestStats] = {}
        self._readers: list[asyncio.Task[None]] = []
        # bounded: what a slow HTTP client does not read waits in the streams
        self._queue: asyncio.Queue[tuple[int, Chunk] | Exception] = asyncio.Queue(64 * len(streams))

    @property
    def stats(self) -> list[RequestStats]:
        """Statistics of every answer, once all have ended; none before."""
        return [self._stats[i] for i in sorted(self._stats)] if len(self._stats) == len(self.streams) else []

    async def __aenter__(self) -> Choices:
        self._gateway.enter(self)
        self._span = self._begin() if self._begin is not None else None
        if len(self.streams) > 1:
            self._readers = [asyncio.create_task(self._read(i, one)) for i, one in enumerate(self.streams)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gateway.leave(self)
        if self._span is not None:
            self._span.end(self.stats, error)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for stream in self.streams:
            await stream.aclose()

    def __aiter__(self) -> Choices:
        return self

    async def __anext__(self) -> tuple[int, Chunk]:
        if len(self._stats) == len(self.streams):
            raise StopAsyncIteration
        with self._gateway.blamed(self._structure):
            index, chunk = await self._next()
        self._watch.chunk(index, chunk)
        self.prompt_tokens = max(self.prompt_tokens, chunk.prompt_tokens)
        if self._span is not None:
            self._span.chunk(index, chunk)
        if chunk.stats is not None:
            self._stats[index] = chunk.stats
            if self.stats:
                self._watch.end()
        return index, _with_stop(chunk) if self._stops_shown else chunk

    @property
    def ready(self) -> bool:
        """Whether more chunks have come already."""
        return not self._queue.empty() if self._readers else self.streams[0].unread > 0

    async def _next(self) -> tuple[int, Chunk]:
        if not self._readers:
            return 0, await anext(self.streams[0])
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def _read(self, index: int, stream: AsyncStream) -> None:
        try:
            async for chunk in stream:
                await self._queue.put((index, chunk))
        except Exception as error:  # any kind: the answer waits for it
            await self._queue.put(error)


def _is_ids(prompt: Prompt) -> TypeGuard[tuple[int, ...]]:
    return not isinstance(prompt, str) and not _is_conversation(prompt)


def _is_conversation(prompt: Prompt) -> TypeGuard[tuple[ChatTurn, ...]]:
    return not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], ChatTurn)


def _with_stop(chunk: Chunk) -> Chunk:
    """The chunk with the stop string that ended the answer, if that is why it ended."""
    if not isinstance(chunk.stop_reason, str) or not chunk.pieces:
        return chunk
    return msgspec.structs.replace(chunk, pieces=(*chunk.pieces[:-1], chunk.pieces[-1] + chunk.stop_reason))


def leaving() -> ApiError:
    return ApiError(503, "this gateway is shutting down; use another")
