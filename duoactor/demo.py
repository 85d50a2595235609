"""What ``duoactor demo`` measures: the same prompts with speculation and without, taking turns, and what that shows."""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from actors.settings import VerifierSettings
from protocols.errors import DuoactorError
from protocols.messages import ChatTurn, Method, RequestStats, Sampling, StatusReport, TokenLogprobs

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


class Piece(Protocol):
    """What commands read of a chunk."""

    @property
    def text(self) -> str: ...
    @property
    def pieces(self) -> tuple[str, ...]: ...
    @property
    def token_ids(self) -> tuple[int, ...]: ...
    @property
    def accepted(self) -> tuple[bool, ...]: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]: ...
    @property
    def stats(self) -> RequestStats | None: ...


class Streams(Protocol):
    """What the demo asks of :class:`duoactor.AsyncClient`."""

    def stream(
        self,
        prompt: str = "",
        *,
        messages: Sequence[Any] = (),
        sampling: Sampling | None = None,
        method: str = "",
        num_speculative_tokens: int = 0,
        sequences: int = 0,
    ) -> AsyncIterator[Piece]: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One answer, as the client saw it."""

    prompt: int  # index
    text: str
    token_ids: tuple[int, ...]
    seconds: float  # request to last token
    ttft_ms: float
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens/s are output tokens over the whole time, prefill included; times are medians over the repeats."""

    tokens_per_second: float
    vanilla_tokens_per_second: float
    speedup: float  # all prompts together
    speedup_median: float  # of the prompts' own ratios
    mean_acceptance_length: float
    ttft_ms: float
    vanilla_ttft_ms: float
    gamma: float
    sequences: float
    overhead_ms_per_round: float
    identical: bool
    method: str
    tokens: int


async def ask(
    client: Streams,
    number: int,
    prompt: str,
    sampling: Sampling,
    method: str,
    show: Callable[[Piece], None] = lambda piece: None,
) -> Run:
    """One stream, timed from the call."""
    text, ids, ttft, stats = "", list[int](), 0.0, RequestStats()
    started = time.perf_counter()
    async for piece in client.stream(messages=(ChatTurn("user", prompt),), sampling=sampling, method=method):
        if not ids and piece.token_ids:
            ttft = time.perf_counter() - started
        text += piece.text
        ids += piece.token_ids
        stats = piece.stats or stats
        show(piece)
    return Run(number, text, tuple(ids), time.perf_counter() - started, 1000 * ttft, stats)


async def measure(
    client: Streams,
    prompts: Sequence[str],
    sampling: Sampling,
    method: str,
    repeats: int,
    progress: Callable[[str], None],
) -> tuple[list[Run], list[Run]]:
    """Speculated and vanilla runs, interleaved per prompt and each first every other time: a noisy machine is
    then noisy for both."""
    fast: list[Run] = []
    plain: list[Run] = []
    await ask(client, 0, prompts[0], sampling, Method.VANILLA)  # warm-up; speculation had its own on show
    for repeat in range(repeats):
        for number, prompt in enumerate(prompts):
            progress(f"measuring: prompt {number + 1} of {len(prompts)}, repeat {repeat + 1} of {repeats} …")
            pair = [(method, fast), (str(Method.VANILLA), plain)]
            for chosen, runs in pair if (repeat + number) % 2 == 0 else reversed(pair):
                runs.append(await ask(client, number, prompt, sampling, chosen))
    return fast, plain


def figures(fast: Sequence[Run], plain: Sequence[Run], shown: Sequence[Run] = ()) -> Figures:
    """``shown`` are further speculated runs: they count for equality only."""
    fast_times, plain_times = _medians(fast), _medians(plain)
    tokens = {run.prompt: len(run.token_ids) for run in plain}
    fast_tokens = {run.prompt: len(run.token_ids) for run in fast}
    rate = sum(fast_tokens.values()) / sum(fast_times.values())
    plain_rate = sum(tokens.values()) / sum(plain_times.values())
    stats = [run.stats for run in fast]
    rounds = sum(one.rounds for one in stats)
    phases: dict[int, int] = {}
    for one in stats:
        for count, times in enumerate(one.sequences_histogram):
            phases[count] = phases.get(count, 0) + times
    texts = {run.prompt: run.token_ids for run in plain}
    return Figures(
        tokens_per_second=rate,
        vanilla_tokens_per_second=plain_rate,
        speedup=rate / plain_rate,
        speedup_median=statistics.median(
            fast_tokens[number] / fast_times[number] / (tokens[number] / plain_times[number])
            for number in fast_times
            if tokens[number]
        ),
        mean_acceptance_length=1 + sum(one.accepted_tokens for one in stats) / max(rounds, 1),
        ttft_ms=statistics.median(run.ttft_ms for run in fast),
        vanilla_ttft_ms=statistics.median(run.ttft_ms for run in plain),
        gamma=sum(one.gamma * one.rounds for one in stats) / max(rounds, 1),
        sequences=sum(count * times for count, times in phases.items()) / max(sum(phases.values()), 1),
        overhead_ms_per_round=sum(one.overhead_ms for one in stats) / max(rounds, 1),
        identical=all(run.token_ids == texts[run.prompt] for run in (*fast, *plain, *shown)),
        method=stats[0].method,
        tokens=sum(tokens.values()),
    )


def _medians(runs: Sequence[Run]) -> dict[int, float]:
    """Prompt -> median time (s)."""
    return {
        number: statistics.median(run.seconds for run in runs if run.prompt == number)
        for number in sorted({run.prompt for run in runs})
    }


async def transformers_tokens_per_second(
    verifier: VerifierSettings, status: StatusReport, prompts: Sequence[str], max_tokens: int, repeats: int
) -> float:
    """Stock ``transformers`` generate in a process of its own, on the verifier's threads and cores."""
    task = {
        "model": verifier.target,
        "prompts": list(prompts),
        "max_tokens": max_tokens,
        "dtype": status.dtype,
        "device": status.device,
        "threads": verifier.threads,
        "cpus": verifier.cpus,
        "repeats": repeats,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "actors.engines.reference",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": str(verifier.threads)},
    )
    try:
        out, said = await child.communicate(msgspec.json.encode(task))
    except BaseException:
        if child.returncode is None:
            child.kill()
        raise
    if child.returncode != 0:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise DuoactorError(f"the transformers run failed ({last}): leave it out with --no-reference")
    return float(msgspec.json.decode(out)["tokens_per_second"])


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": next(_cpu_names(), platform.processor() or "unknown"),
        "cpus": os.cpu_count() or 1,
        "python": platform.python_version(),
    }


def _cpu_names() -> Iterator[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    yield line.partition(":")[2].strip()
    except OSError:
        return
