"""Many streams at once: each sends its next request when the last has ended."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from duoactor.bench.answers import Ours, digest
from duoactor.bench.methods import VANILLA, Row, row_named
from duoactor.bench.results import Results, StreamsRun
from duoactor.bench.suites import Prompt, by_turns
from duoactor.bench.summary import percentiles
from protocols.errors import ConfigError, RequestError
from protocols.messages import ChatTurn, Sampling

PER_STREAM = 3  # requests: for two thirds of a run every stream is at work
PERCENTILES = (50, 95, 99)


def choose_streams(numbers: str) -> list[int]:
    """The numbers of a comma list, the smallest first. Raises ConfigError."""
    asked = [number.strip() for number in numbers.split(",") if number.strip()]
    if not asked or not all(number.isdecimal() and 1 <= int(number) <= 1024 for number in asked):
        raise ConfigError(f"--streams takes numbers from 1 to 1024 by commas, such as 1,4,16; not {numbers!r}")
    return sorted({int(number) for number in asked})


@dataclass(slots=True)
class StreamTimes:
    """One answer's chunks, in ms from the start of the run."""

    prompt: str
    sent: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    failed: bool = False

    async def read(self, ours: Ours, row: Row, text: str, sampling: Sampling, clock: Callable[[], float]) -> None:
        try:
            async for chunk in ours.stream(row, (ChatTurn("user", text),), sampling):
                if chunk.token_ids:
                    self.times.append(clock())
                    self.tokens.append(len(chunk.token_ids))
                    self.ids += chunk.token_ids
        except RequestError:
            self.failed = True


async def run_streams(
    ours: Ours, row: Row, prompts: Sequence[Prompt], sampling: Sampling, streams: int, repeat: int
) -> StreamsRun:
    """Every prompt at least once, and ``PER_STREAM`` requests a stream."""
    ordered = by_turns(prompts)
    waiting = itertools.islice(itertools.cycle(ordered), max(len(ordered), PER_STREAM * streams))
    answers: list[StreamTimes] = []
    began = time.perf_counter()

    def clock() -> float:
        return round(1000 * (time.perf_counter() - began), 2)

    async def stream() -> None:
        for prompt in waiting:
            answer = StreamTimes(prompt.id, clock())
            answers.append(answer)
            await answer.read(ours, row, prompt.turns[0], sampling, clock)

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    good = [one for one in answers if one.times and not one.failed]
    return StreamsRun(
        method=row.name,
        streams=streams,
        repeat=repeat,
        tokens_per_second=throughput(answers),
        first_ms=tuple(one.times[0] - one.sent for one in good),
        pauses_ms=tuple(b - a for one in good for a, b in itertools.pairwise(one.times)),
        digests={one.prompt: digest(one.ids) for one in good},
        failed=len(answers) - len(good),
    )


def throughput(answers: Sequence[StreamTimes]) -> float:
    """Tokens per second of all streams, until the first of them finds no request left."""
    last = max((one.sent for one in answers), default=0.0)
    until = min((one.times[-1] for one in answers if one.times and one.times[-1] > last), default=0.0)
    tokens = sum(n for one in answers for at, n in zip(one.times, one.tokens, strict=True) if at <= until)
    return 1000 * tokens / until if until else 0.0


@dataclass(frozen=True, slots=True)
class StreamsLine:
    """One method with a number of streams. Percentiles (50, 95, 99) are of all repeats together."""

    name: str
    label: str
    streams: int
    tokens_per_second: float  # median of the repeats
    speedup: float  # over vanilla in the same repeat: the median of the repeats
    low: float
    high: float
    first_ms: tuple[float, ...]
    pause_ms: tuple[float, ...]
    failed: int
    compared: int  # texts, with vanilla's of the same prompt
    different: int


def summarize_streams(results: Results) -> list[StreamsLine]:
    """By number of streams, then by method."""
    counts = dict.fromkeys(run.streams for run in results.loads)
    return [
        _line([run for run in results.loads if run.streams == streams], name)
        for streams in counts
        for name in results.methods
        if any((run.streams, run.method) == (streams, name) for run in results.loads)
    ]


def _line(here: Sequence[StreamsRun], name: str) -> StreamsLine:
    """``here``: all runs with that number of streams."""
    runs = [run for run in here if run.method == name]
    plain = {run.repeat: run for run in here if run.method == VANILLA}
    ratios = [
        run.tokens_per_second / base.tokens_per_second
        for run in runs
        if (base := plain.get(run.repeat)) is not None and base.tokens_per_second
    ] or [0.0]
    texts = {prompt: one for run in plain.values() for prompt, one in run.digests.items()}
    same = [one == texts[prompt] for run in runs for prompt, one in run.digests.items() if prompt in texts]
    return StreamsLine(
        name=name,
        label=row_named(name).label,
        streams=runs[0].streams,
        tokens_per_second=statistics.median(run.tokens_per_second for run in runs),
        speedup=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        first_ms=percentiles([ms for run in runs for ms in run.first_ms], PERCENTILES),
        pause_ms=percentiles([ms for run in runs for ms in run.pauses_ms], PERCENTILES),
        failed=sum(run.failed for run in runs),
        compared=len(same),
        different=same.count(False),
    )
