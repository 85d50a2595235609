"""The one path from chunks to an answer, which each API writes in its own shape."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Generic, Literal, TypeVar

import msgspec

from duoactor.client.metrics import metrics, together
from duoactor.serve.errors import ApiError
from duoactor.serve.thinking import ThoughtParser
from duoactor.serve.tool_calls.events import Arguments, CallBegan, CallEnded, Event, Parser, Said, Thought
from duoactor.serve.trace import Pieces as Pieces
from protocols.messages import UNCHANGED, Chunk, FinishReason, RequestStats, Tokenized

I = TypeVar("I")  # noqa: E741
Kind = Literal["thought", "text", "call"]


class TokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0  # tokens with a price of their own: none here


class ThoughtDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a request, as llama-server tells them. ``prompt_ms`` ends with the first token; ``cache_n`` tokens were
    not computed again."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int

    @classmethod
    def of(cls, stats: RequestStats) -> Timings:
        read, made = stats.prompt_tokens - stats.cached_tokens, stats.completion_tokens
        first, rest = stats.time_to_first_token_ms, stats.decode_ms
        return cls(
            cache_n=stats.cached_tokens,
            prompt_n=read,
            prompt_ms=first,
            prompt_per_token_ms=first / read if read else 0.0,
            prompt_per_second=1000 * read / first if first else 0.0,
            predicted_n=made,
            predicted_ms=rest,
            predicted_per_token_ms=rest / made if made else 0.0,
            predicted_per_second=1000 * made / rest if rest else 0.0,
            draft_n=stats.draft_tokens,
            draft_n_accepted=stats.accepted_tokens,
        )


class Answer(ABC):
    """An answer in one API's shape: as one body, or as events."""

    media_type = "text/event-stream"

    def __init__(self, model: str, prefix: str, parser: Callable[[], Parser], n: int = 1) -> None:
        """``prefix``: of its id; ``parser`` makes one for each of ``n`` choices to a prompt."""
        self.id = f"{prefix}{uuid.uuid4().hex}"
        self.created = now()
        self.model = model
        self.thought_tokens = 0  # thought tokens of all choices
        self.prompt_ids: Sequence[Sequence[int]] = ()  # each prompt's, where they are wanted
        self.prompts: Sequence[Tokenized] = ()  # prompts that are scored themselves
        self.sampling = UNCHANGED  # what was asked for, with the model's own defaults
        self._parsers = [parser() for _ in range(n)]

    @abstractmethod
    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        """The body, from every choice's chunks."""

    @abstractmethod
    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        """The events for one chunk of choice ``index``; ``stats`` of all choices with the very last one, else none."""

    @abstractmethod
    def end(self, stats: Sequence[RequestStats]) -> bytes:
        """The events after the last chunk."""

    @abstractmethod
    def fail(self, error: ApiError) -> bytes:
        """The events that end a stream which has begun and cannot go on."""

    def loaded(self) -> bytes:
        """The body for a request that only loads the model, in the API that has such requests."""
        raise NotImplementedError

    def read(self, index: int, chunks: Sequence[Chunk]) -> list[Event]:
        """The events in a choice's next chunks. With its last one comes the held-back text, unless ``max_tokens``
        cut it off inside the markup of a call."""
        parser = self._parsers[index]
        pieces = deque(piece for chunk in chunks for piece in chunk.pieces)
        events: list[Event] = []
        if isinstance(parser, ThoughtParser):
            while pieces and not parser.thoughts.answers:
                events += parser.feed(pieces.popleft())
                self.thought_tokens += parser.thoughts.inside
        events += parser.feed("".join(pieces))
        if chunks[-1].finish_reason is not None:
            events += parser.end(cut=chunks[-1].finish_reason is FinishReason.LENGTH)
        return _joined(events)


def _joined(events: Sequence[Event]) -> list[Event]:
    """Pieces of a thought as one."""
    made: list[Event] = []
    for _, same in groupby(events, type):
        some = list(same)
        thoughts = [event.text for event in some if isinstance(event, Thought)]
        made += [Thought("".join(thoughts))] if thoughts else some
    return made


class ItemAnswer(Answer, Generic[I]):
    """An answer to one prompt, of items that follow one another: thoughts, texts and calls. The last may be open."""

    def __init__(self, model: str, prefix: str, parser: Callable[[], Parser]) -> None:
        super().__init__(model, prefix, parser)
        self.items: list[I] = []
        self.last: Chunk | None = None
        self._open: Kind | None = None
        self._written: list[str] = []  # pieces of the open item's text or arguments

    @abstractmethod
    def item(self, kind: Kind, name: str = "") -> I:
        """An empty one; ``name``: of a call."""

    @abstractmethod
    def began(self, item: I) -> bytes:
        """Events."""

    @abstractmethod
    def wrote(self, item: I, piece: str) -> bytes:
        """Events."""

    @abstractmethod
    def closed(self, item: I, text: str, whole: bool) -> tuple[I, bytes]:
        """The item with all of its text or arguments, and events; ``whole``: the limit did not cut it off."""

    @abstractmethod
    def opening(self, chunk: Chunk) -> bytes:
        """The events before the first item."""

    @abstractmethod
    def closing(self, stats: Sequence[RequestStats]) -> bytes:
        """The events after the last item."""

    @abstractmethod
    def body(self, stats: Sequence[RequestStats]) -> msgspec.Struct: ...

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        (chunks,) = choices
        self.last = chunks[-1]
        self._events(self.read(0, chunks))
        self._finish()
        return msgspec.json.encode(self.body(stats))

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        out = b"" if self.last is not None else self.opening(chunk)
        self.last = chunk
        return out + self._events(self.read(index, [chunk]))

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        return self._finish() + self.closing(stats)

    @property
    def cut(self) -> bool:
        """Whether the answer ended by its limit."""
        return self.last is not None and self.last.finish_reason is FinishReason.LENGTH

    def _events(self, events: Sequence[Event]) -> bytes:
        out = b""
        for one in events:
            match one:
                case Thought(piece):
                    out += self._go_on("thought") + self._write(piece)
                case Said(piece):
                    out += self._go_on("text") + self._write(piece)
                case CallBegan(name):
                    out += self._end() + self._begin("call", name)
                case Arguments(piece):
                    out += self._write(piece)
                case CallEnded(whole):
                    out += self._end(whole)
        return out

    def _go_on(self, kind: Kind) -> bytes:
        return b"" if self._open == kind else self._end() + self._begin(kind)

    def _begin(self, kind: Kind, name: str = "") -> bytes:
        self._open = kind
        self._written.clear()
        self.items.append(self.item(kind, name))
        return self.began(self.items[-1])

    def _write(self, piece: str) -> bytes:
        self._written.append(piece)
        return self.wrote(self.items[-1], piece)

    def _end(self, whole: bool = True) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self.items[-1], out = self.closed(self.items[-1], "".join(self._written), whole)
        return out

    def _finish(self) -> bytes:
        """An answer has one item at least. A thought has ended by itself where its closing mark was read."""
        (parser,) = self._parsers
        thought = self._open == "thought" and isinstance(parser, ThoughtParser) and parser.thoughts.answers
        return (b"" if self.items else self._begin("text")) + self._end(whole=thought or not self.cut)


def figures(stats: Sequence[RequestStats]) -> dict[str, Any]:
    """``metrics`` of an answer."""
    found = metrics(together(stats))
    return {name: found[name] for name in ("time_to_first_token_ms", "tokens_per_second", "speculative_decoding")}


def now() -> int:
    """Unix time in seconds, for ``created``."""
    return int(time.time())  # noqa: TID251


def stamp(ago_ms: float = 0.0) -> str:
    """The date and time as RFC 3339 has it."""
    then = datetime.now(UTC) - timedelta(milliseconds=ago_ms)  # noqa: TID251
    return then.isoformat().replace("+00:00", "Z")


def card(name: str) -> dict[str, object]:
    """A model as OpenAI's and Anthropic's lists describe it."""
    openai = {"id": name, "object": "model", "created": now(), "owned_by": "duoactor"}
    return {**openai, "type": "model", "display_name": name, "created_at": stamp(), "lifecycle": "active"}


def listing(cards: Sequence[dict[str, object]]) -> dict[str, object]:
    """The list of all models, as one page of Anthropic's."""
    return {"object": "list", "data": cards, "first_id": cards[0]["id"], "last_id": cards[-1]["id"], "has_more": False}


def new_id(prefix: str) -> str:
    return f"{prefix}{uuid.uuid4().hex[:24]}"
