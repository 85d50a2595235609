"""What a benchmark under load leaves behind: cells (one method, one load, one repeat), and one document."""

from __future__ import annotations

import msgspec

from duoactor.bench.results import Document

LINES = "load.jsonl"
DOCUMENT = "load.json"
LONG = "long"  # what the prompts of LONG_TOKENS are called
LONG_TOKENS = 1536


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, as its client saw it. Times in ms from the cell's begin."""

    prompt: str
    sent: float
    times: tuple[float, ...] = ()  # of the chunks that had tokens
    tokens: tuple[int, ...] = ()  # of each of them
    # By the verifier's telemetry: when its rounds ended, the first token's before them, and of each how many streams
    # decoded and how many rows the forward had. Forwards in a row are rounds of their own.
    turns: tuple[float, ...] = ()
    streams: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    digest: str = ""
    error: str = ""
    rounds: int = 0
    drafted: int = 0  # draft tokens that were verified
    accepted: int = 0
    forward_ms: float = 0.0  # sum over its rounds
    wait_ms: float = 0.0

    @property
    def first(self) -> float:
        return self.times[0] if self.times else self.sent

    @property
    def ended(self) -> float:
        return self.times[-1] if self.times else self.sent

    @property
    def count(self) -> int:
        return sum(self.tokens)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """``streams``: how many are at work at once where a stream asks again when it was answered (``closed``). Elsewhere
    requests come by themselves, ``rate`` of them a second: as many as vanilla answers with so many streams."""

    method: str
    arrivals: str
    streams: int
    repeat: int
    rate: float = 0.0
    answers: tuple[Told, ...] = ()

    @property
    def unit(self) -> tuple[str, int, str, int]:
        return (self.arrivals, self.streams, self.method, self.repeat)


class LoadResults(Document, kw_only=True):
    """Of methods under load: the whole of ``load.json``."""

    cells: tuple[Cell, ...] = ()
