"""What the answers of all APIs share: the interface that each of them fills, and the last figures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from duoactor.client.metrics import metrics, together
from duoactor.serve.errors import ApiError
from duoactor.serve.trace import Pieces as Pieces
from protocols.messages import Chunk, RequestStats


class TokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class Answer(Protocol):
    """One API's way to write an answer: as one body, or as events."""

    def whole(self, choices: Sequence[Sequence[Chunk]], stats: Sequence[RequestStats], pieces: Pieces) -> bytes:
        """The body, from every choice's chunks."""
        ...

    def chunk(self, index: int, chunk: Chunk, pieces: Pieces, stats: Sequence[RequestStats]) -> bytes:
        """The events for one chunk of choice ``index``; ``stats`` of all choices with the very last one, else none."""
        ...

    def end(self, stats: Sequence[RequestStats]) -> bytes:
        """The events after the last chunk."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """The events that end a stream which has begun and cannot go on."""
        ...


def figures(stats: Sequence[RequestStats]) -> dict[str, Any]:
    """``metrics`` of an answer."""
    found = metrics(together(stats))
    return {name: found[name] for name in ("time_to_first_token_ms", "tokens_per_second", "speculative_decoding")}


def now() -> int:
    """As ``created`` has it."""
    return int(time.time())  # noqa: TID251
