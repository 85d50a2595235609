"""Many streams at once: each sends its next request when the last has ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from duoactor.bench.answers import Ours, TimedAnswer
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


class StreamRequest(NamedTuple):
    """A request to ``prompt``, and its answer; None: it failed. Times in ms from the start of the run."""

    prompt: str
    at: float
    answer: TimedAnswer | None

    @property
    def chunks(self) -> list[tuple[float, int]]:
        return [(self.at + ms, tokens) for ms, tokens in self.answer.chunks] if self.answer is not None else []


async def run_streams(
    ours: Ours, row: Row, prompts: Sequence[Prompt], sampling: Sampling, streams: int, repeat: int
) -> StreamsRun:
    """Every prompt at least once, and ``PER_STREAM`` requests a stream."""
    ordered = by_turns(prompts)
    waiting = itertools.islice(itertools.cycle(ordered), max(len(ordered), PER_STREAM * streams))
    requests: list[StreamRequest] = []
    began = time.perf_counter()

    async def stream() -> None:
        for prompt in waiting:
            at, answer = 1000 * (time.perf_counter() - began), None
            with contextlib.suppress(RequestError):
                answer = await ours.answer(row, (ChatTurn("user", prompt.turns[0]),), sampling)
            requests.append(StreamRequest(prompt.id, at, answer))

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    good = [(one.prompt, one.answer) for one in requests if one.answer is not None and one.answer.chunks]
    pauses = (b - a for _, answer in good for (a, _), (b, _) in itertools.pairwise(answer.chunks))
    return StreamsRun(
        method=row.name,
        streams=streams,
        repeat=repeat,
        tokens_per_second=throughput(requests),
        first_ms=tuple(round(answer.ttft_ms, 2) for _, answer in good),
        pauses_ms=tuple(round(pause, 2) for pause in pauses),
        digests={prompt: answer.digest for prompt, answer in good},
        failed=len(requests) - len(good),
    )


def throughput(requests: Sequence[StreamRequest]) -> float:
    """Tokens per second of all streams, until the first of them finds no request left."""
    last = max((one.at for one in requests), default=0.0)
    ends = (chunks[-1][0] for one in requests if (chunks := one.chunks))
    until = min((end for end in ends if end > last), default=0.0)
    tokens = sum(count for one in requests for at, count in one.chunks if at <= until)
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
