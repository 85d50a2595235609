"""What cells add up to: a line for every load and method."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from duoactor.bench.load.cells import LONG, Cell, LoadResults
from duoactor.bench.methods import VANILLA, label
from duoactor.bench.summary import percentiles

PERCENTILES = (50, 95, 99)
FEWEST = 8  # turns: of an answer with fewer its share says little


@dataclass(frozen=True, slots=True)
class LoadLine:
    """Times in ms. Percentiles are the 50th, 95th and 99th of all repeats' together."""

    arrivals: str
    streams: int
    name: str
    label: str
    rate: float  # requests a second; 0: closed loop
    tokens_per_second: float
    speedup: float  # over vanilla's in the same repeat: the median of the repeats
    low: float
    high: float
    first_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]  # between two chunks of an answer
    lowest_tokens: float  # of an answer's tokens over its share of all that came while it ran: the lowest answer
    lowest_rounds: float  # the same of its rounds: how often it had its turn
    # Of rounds while somebody's long prompt was read, over those of vanilla with as many streams as requests were there
    # and nothing beside: percentiles, and the longest.
    stall: tuple[float, ...]
    tokens_per_round: float
    drafted_per_round: float
    acceptance: float
    waiting: float  # share of the time from the first token to the last
    answers: int
    failed: int
    compared: int
    different: int


def summarize_load(results: LoadResults) -> list[LoadLine]:
    """By arrivals and streams in their order, every method in the results' order."""
    loads: dict[tuple[str, int], list[Cell]] = {}
    for cell in results.cells:
        loads.setdefault((cell.arrivals, cell.streams), []).append(cell)
    return [
        _line(here, name)
        for here in loads.values()
        for name in results.methods
        if any(cell.method == name for cell in here)
    ]


def _line(here: Sequence[Cell], name: str) -> LoadLine:
    """``here``: all cells of a load."""
    cells = [cell for cell in here if cell.method == name]
    plain = {cell.repeat: cell for cell in here if cell.method == VANILLA}
    rates = [throughput(cell) for cell in cells]
    ratios = [
        throughput(cell) / base for cell in cells if cell.repeat in plain and (base := throughput(plain[cell.repeat]))
    ] or [0.0]
    answers = [told for cell in cells for told in cell.answers if told.times]
    rounds = sum(told.rounds for told in answers)
    drafted = sum(told.drafted for told in answers)
    texts = {told.prompt: told.digest for cell in plain.values() for told in cell.answers if not told.error}
    compared = [told for told in answers if not told.error and told.prompt in texts]
    decoding = sum(told.ended - told.first for told in answers)
    shares = [shares_of(cell) for cell in cells]
    return LoadLine(
        arrivals=cells[0].arrivals,
        streams=cells[0].streams,
        name=name,
        label=label(name),
        rate=cells[0].rate,
        tokens_per_second=statistics.median(rates),
        speedup=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        first_ms=percentiles([told.first - told.sent for told in answers], PERCENTILES),
        gap_ms=percentiles([gap for told in answers for _, gap in gaps(told.times)], PERCENTILES),
        lowest_tokens=min((share for tokens, _ in shares for share in tokens), default=0.0),
        lowest_rounds=min((share for _, turns in shares for share in turns), default=0.0),
        stall=_stall(cells, list(plain.values())),
        tokens_per_round=1 + sum(told.accepted for told in answers) / rounds if rounds else 0.0,
        drafted_per_round=drafted / rounds if rounds else 0.0,
        acceptance=sum(told.accepted for told in answers) / drafted if drafted else 0.0,
        waiting=sum(told.wait_ms for told in answers) / decoding if decoding else 0.0,
        answers=len(answers),
        failed=sum(bool(told.error) for cell in cells for told in cell.answers),
        compared=len(compared),
        different=sum(told.digest != texts[told.prompt] for told in compared),
    )


def busy_ms(cell: Cell) -> float:
    """How long every stream was at work: until one was done and found no request left. Where requests come by
    themselves, until the last was answered."""
    last = max((told.sent for told in cell.answers), default=0.0)
    ends = [told.ended for told in cell.answers if told.ended >= last]
    return min(ends, default=0.0) if not cell.rate else max(ends, default=0.0)


def throughput(cell: Cell) -> float:
    """Tokens per second of all streams together, while they all were at work."""
    until = busy_ms(cell)
    tokens = sum(n for told in cell.answers for at, n in zip(told.times, told.tokens, strict=True) if at <= until)
    return 1000 * tokens / until if until else 0.0


def gaps(times: Sequence[float]) -> Iterator[tuple[float, float]]:
    """(when it began, ms) of each pause between two of them."""
    return ((a, b - a) for a, b in itertools.pairwise(times))


def shares_of(cell: Cell) -> tuple[list[float], list[float]]:
    """Of every answer: its tokens, and its turns, over its share of all that came while it ran. Were all streams
    served alike, each would have an n-th of what comes while n decode. Tokens come when their reader sees them, turns
    when the verifier gave them: a reader that was held up says nothing of those."""
    running = [told for told in cell.answers if len(told.times) >= 2 and len(told.turns) >= 2]
    judged = [len(told.turns) > FEWEST for told in running]
    tokens = [list(zip(told.times, told.tokens, strict=True)) for told in running]
    turns = [[(at, 1) for at in told.turns] for told in running]
    return _shares(tokens, judged), _shares(turns, judged)


def _shares(answers: Sequence[Sequence[tuple[float, int]]], judged: Sequence[bool]) -> list[float]:
    """``answers``: when each got what, and how much; it decodes from the first of them to the last. Of those that are
    ``judged`` and were not read at once."""
    begins, ends = sorted(got[0][0] for got in answers), sorted(got[-1][0] for got in answers)
    events = sorted(event for got in answers for event in got[1:])
    when, due = [at for at, _ in events], [0.0]  # of a stream that decodes all the time, up to each event
    for at, n in events:
        due.append(due[-1] + n / max(1, bisect.bisect_left(begins, at) - bisect.bisect_left(ends, at)))
    found = []
    for got in itertools.compress(answers, judged):
        begin, end = bisect.bisect_right(when, got[0][0]), bisect.bisect_right(when, got[-1][0])
        if begin < end:
            found.append(sum(n for _, n in got[1:]) / (due[end] - due[begin]))
    return found


def _stall(cells: Sequence[Cell], plain: Sequence[Cell]) -> tuple[float, ...]:
    """Of answers that ran while a long prompt was read: percentiles of the time from the end of a round to that of the
    next and the longest, over the mean round of vanilla with nothing beside and as many streams as requests were there,
    those included that waited for their first token."""
    usual = _plain_rounds(plain)
    if not usual:
        return ()
    found: list[float] = []
    for cell in cells:
        reading = [(told.sent, told.first) for told in cell.answers if told.prompt == LONG and told.times]
        sent, ended = (sorted(getattr(told, at) for told in cell.answers) for at in ("sent", "ended"))
        for told in cell.answers:
            if told.prompt != LONG:
                for at, gap in gaps(told.turns):
                    if any(at < end and at + gap > begin for begin, end in reading):
                        there = bisect.bisect_right(sent, at) - bisect.bisect_right(ended, at)
                        found.append(gap / usual[min(usual, key=lambda known: abs(known - there))])
    return percentiles(found, (*PERCENTILES, 100))


def _plain_rounds(plain: Sequence[Cell]) -> dict[int, float]:
    """Mean milliseconds of vanilla's rounds by the number of their streams, of those that had nothing but these."""
    times: dict[int, list[float]] = {}
    for cell in plain:
        for told in cell.answers:
            for (_, gap), streams, rows in zip(gaps(told.turns), told.streams, told.rows, strict=True):
                if rows == streams:
                    times.setdefault(streams, []).append(gap)
    return {streams: statistics.fmean(some) for streams, some in times.items()}
