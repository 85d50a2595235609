"""What ``duoactor demo`` measures: the same prompts with speculation and without, taking turns, and what that shows."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from duoactor.bench.reference import Reference
from duoactor.client.async_client import AsyncClient
from protocols.errors import RequestError
from protocols.messages import ChatTurn, Chunk, FailureCode, RequestStats, Sampling

# in kind what the bundled pair was trained on
PROMPTS = (
    "Lisa has 12 apples. She buys 3 bags with 6 apples each and gives 8 apples to her brother. "
    "How many apples does she have now?",
    "Translate from German to English: Zwei Frauen sitzen auf einer Bank und lesen ein Buch.",
    "Write a Python function that returns the sum of all even numbers in a list.",
    "A train travels 60 miles per hour for 3 hours and then 45 miles per hour for 2 hours. "
    "How many miles does it travel in all?",
    "Write a Python function that checks whether a word is a palindrome.",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One answer, as the client saw it."""

    prompt: int  # index
    text: str
    token_ids: tuple[int, ...]
    seconds: float  # request to last token
    ttft_ms: float
    stats: RequestStats


Contender = Callable[[int, str], Awaitable[Run]]  # the prompt's index and the prompt


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens/s are output tokens over the whole time, prefill included; times are medians over the repeats."""

    tokens_per_second: float
    vanilla_tokens_per_second: float
    speedup: float  # all prompts together
    speedup_median: float  # of the prompts' own ratios
    speedup_lowest: float
    speedup_highest: float
    mean_acceptance_length: float
    ttft_ms: float
    vanilla_ttft_ms: float
    gamma: float
    sequences: float
    overhead_ms_per_round: float
    identical: bool
    method: str
    tokens: int
    runs: int  # whose texts were compared


async def ask(
    client: AsyncClient,
    number: int,
    prompt: str,
    sampling: Sampling,
    method: str,
    show: Callable[[Chunk], None] = lambda chunk: None,
) -> Run:
    """One stream, timed from its request. A target without a chat template gets the bare prompt."""
    salt = uuid.uuid4().hex  # the plain run's text must not help the one that is shown beside it
    options: dict[str, Any] = {"sampling": sampling, "method": method, "cache_salt": salt}
    try:
        return await _read(client.stream(messages=(ChatTurn("user", prompt),), **options), number, show)
    except RequestError as error:
        if error.code != FailureCode.UNSUPPORTED:
            raise
    return await _read(client.stream(prompt, **options), number, show)


async def _read(stream: AsyncIterator[Chunk], number: int, show: Callable[[Chunk], None]) -> Run:
    text, ids, ttft, stats = "", list[int](), 0.0, RequestStats()
    started = time.perf_counter()
    async for chunk in stream:
        if not ids and chunk.token_ids:
            ttft = time.perf_counter() - started
        text += chunk.text
        ids += chunk.token_ids
        stats = chunk.stats or stats
        show(chunk)
    return Run(number, text, tuple(ids), time.perf_counter() - started, 1000 * ttft, stats)


async def ask_transformers(reference: Reference, number: int, prompt: str, sampling: Sampling) -> Run:
    """The same of ``transformers``' own generate."""
    found = await reference.generate((ChatTurn("user", prompt),), "plain", sampling)
    return Run(number, found.text, found.token_ids, found.total_ms / 1000, found.ttft_ms, RequestStats())


async def measure(
    contenders: Sequence[Contender], prompts: Sequence[str], repeats: int, progress: Callable[[str], None]
) -> list[list[Run]]:
    """Every contender's runs. They take turns on every prompt, and on who is first: a noisy machine is then noisy for
    all. One run of each before that does not count."""
    runs: list[list[Run]] = [[] for _ in contenders]
    for contender in contenders:
        await contender(0, prompts[0])
    for repeat in range(repeats):
        for number, prompt in enumerate(prompts):
            progress(f"measuring: prompt {number + 1} of {len(prompts)}, repeat {repeat + 1} of {repeats} …")
            first = (repeat + number) % len(contenders)
            for which in (*range(first, len(contenders)), *range(first)):
                runs[which].append(await contenders[which](number, prompt))
    return runs


def figures(fast: Sequence[Run], plain: Sequence[Run], shown: Sequence[Run] = ()) -> Figures:
    """``shown`` are further speculated runs: they count for equality only."""
    fast_times, plain_times = _medians(fast), _medians(plain)
    tokens, fast_tokens = _tokens(plain), _tokens(fast)
    rate, plain_rate = tokens_per_second(fast), tokens_per_second(plain)
    stats = [run.stats for run in fast]
    rounds = sum(one.rounds for one in stats)
    phases: dict[int, int] = {}
    for one in stats:
        for count, times in enumerate(one.sequences_histogram):
            phases[count] = phases.get(count, 0) + times
    texts = {run.prompt: run.token_ids for run in plain}
    ratios = [
        fast_tokens[number] / fast_times[number] / (tokens[number] / plain_times[number])
        for number in fast_times
        if tokens[number]
    ]
    return Figures(
        tokens_per_second=rate,
        vanilla_tokens_per_second=plain_rate,
        speedup=rate / plain_rate,
        speedup_median=statistics.median(ratios),
        speedup_lowest=min(ratios),
        speedup_highest=max(ratios),
        mean_acceptance_length=1 + sum(one.accepted_tokens for one in stats) / max(rounds, 1),
        ttft_ms=statistics.median(run.ttft_ms for run in fast),
        vanilla_ttft_ms=statistics.median(run.ttft_ms for run in plain),
        gamma=sum(one.gamma * one.rounds for one in stats) / max(rounds, 1),
        sequences=sum(count * times for count, times in phases.items()) / max(sum(phases.values()), 1),
        overhead_ms_per_round=sum(one.overhead_ms for one in stats) / max(rounds, 1),
        identical=all(run.token_ids == texts[run.prompt] for run in (*fast, *plain, *shown)),
        method=stats[0].method,
        tokens=sum(tokens.values()),
        runs=len([*fast, *plain, *shown]),
    )


def tokens_per_second(runs: Sequence[Run]) -> float:
    """Output tokens of all prompts over the sum of their median times; 0 for no runs."""
    return sum(_tokens(runs).values()) / sum(_medians(runs).values()) if runs else 0.0


def _tokens(runs: Sequence[Run]) -> dict[int, int]:
    """Prompt -> output tokens."""
    return {run.prompt: len(run.token_ids) for run in runs}


def _medians(runs: Sequence[Run]) -> dict[int, float]:
    """Prompt -> median time (s)."""
    return {
        number: statistics.median(run.seconds for run in runs if run.prompt == number)
        for number in sorted({run.prompt for run in runs})
    }
