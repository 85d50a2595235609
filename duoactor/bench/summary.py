"""The figures of the tables, computed from single runs.

- *tokens/s*: output tokens divided by the time from the request to the last token, as the client sees it, prompt
  included. A task's rate is the tokens of all its answers divided by the time of all of them.
- *decode*: the same without the first token and its time.
- *speed-up* φ: a method's tokens/s divided by vanilla's, on the same prompts in the same repeat. A table shows the
  median of the repeats, and the lowest and the highest.
- *average*: the mean of the tasks' φ.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from duoactor.bench.methods import VANILLA, row_named
from duoactor.bench.results import Results, Run
from protocols.messages import RequestStats

AVERAGE = "average"
Key = tuple[str, int, int]  # prompt, turn, repeat
Time = Callable[[Run], tuple[float, float]]  # tokens, ms


@dataclass(frozen=True, slots=True)
class Speed:
    """One method on one task."""

    tokens_per_second: float
    speedup: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Work:
    """A method's drafts, and the parts of its time."""

    acceptance_rate: float
    mean_acceptance_length: float
    foreseen: float  # share of rounds that ended with the next drafts at hand
    gamma: float
    sequences: float  # mean per drafting phase; 0: none were counted
    round_ms: float
    forward_ms: float  # per round
    wait_ms: float  # per round
    overhead_ms: float  # per round


@dataclass(frozen=True, slots=True)
class MethodLine:
    """One row of the tables. ``cells`` by task and "average"."""

    name: str
    label: str
    missing: str = ""  # why there are no figures
    cells: dict[str, Speed] = field(default_factory=dict)
    decode_speedup: float = 0.0  # average, without first tokens
    ttft_ms: float = 0.0
    ttft_ratio: float = 0.0  # median ratio to vanilla's on the same prompt
    compared: int = 0  # conversations compared with vanilla's text
    different: int = 0
    failed: int = 0  # answers that ended in an error
    work: Work | None = None  # None: not ours


def whole(run: Run) -> tuple[float, float]:
    return run.tokens, run.total_ms


def decoding(run: Run) -> tuple[float, float]:
    return max(0, run.tokens - 1), run.total_ms - run.ttft_ms


def summarize(results: Results) -> list[MethodLine]:
    """One line per row, in the tables' order."""
    return [_line(results, name) for name in results.methods]


def _line(results: Results, name: str) -> MethodLine:
    runs = [run for run in results.runs if run.method == name]
    good = {_key(run): run for run in runs if not run.error}
    plain = {_key(run): run for run in results.runs if run.method == VANILLA and not run.error}
    pairs = [(good[at], plain[at]) for at in good if at in plain]
    label = row_named(name).label
    if not pairs:
        errors = [run.error for run in runs if run.error]
        return MethodLine(name, label, missing=results.missing.get(name) or (errors[0] if errors else "not run yet"))
    compared, different = _equality(results, name, good.values(), plain)
    decode = _cells(pairs, decoding)
    return MethodLine(
        name,
        label,
        cells=_cells(pairs, whole),
        decode_speedup=decode[AVERAGE].speedup if decode else 0.0,
        ttft_ms=statistics.median(run.ttft_ms for run, _ in pairs),
        ttft_ratio=statistics.median([run.ttft_ms / base.ttft_ms for run, base in pairs if base.ttft_ms] or [0.0]),
        compared=compared,
        different=different,
        failed=sum(bool(run.error) for run in runs),
        work=work_of([run.stats for run, _ in pairs if run.stats is not None]),
    )


def _key(run: Run) -> Key:
    return (run.prompt, run.turn, run.repeat)


def _cells(pairs: Sequence[tuple[Run, Run]], time: Time) -> dict[str, Speed]:
    cells: dict[str, Speed] = {}
    repeats: dict[int, list[float]] = {}
    for task in dict.fromkeys(run.task for run, _ in pairs):
        rates: list[float] = []
        ratios: list[float] = []
        for repeat in sorted({run.repeat for run, _ in pairs}):
            here = [(run, base) for run, base in pairs if run.task == task and run.repeat == repeat]
            rate, plain = rate_of((run for run, _ in here), time), rate_of((base for _, base in here), time)
            if rate and plain:
                rates.append(rate)
                ratios.append(rate / plain)
                repeats.setdefault(repeat, []).append(rate / plain)
        if ratios:
            cells[task] = _speed(statistics.median(rates), ratios)
    if cells:
        rate = statistics.mean(cell.tokens_per_second for cell in cells.values())
        # a repeat that an interruption left without some tasks has no average
        full = [statistics.mean(some) for some in repeats.values() if len(some) == len(cells)]
        cells[AVERAGE] = _speed(rate, full or [statistics.mean(cell.speedup for cell in cells.values())])
    return cells


def _speed(rate: float, ratios: Sequence[float]) -> Speed:
    return Speed(rate, statistics.median(ratios), min(ratios), max(ratios))


def rate_of(runs: Iterable[Run], time: Time) -> float:
    """Tokens per second of several answers together."""
    made = [time(run) for run in runs]
    spent = sum(ms for _, ms in made)
    return 1000 * sum(tokens for tokens, _ in made) / spent if spent else 0.0


def _equality(results: Results, name: str, runs: Iterable[Run], plain: dict[Key, Run]) -> tuple[int, int]:
    """Conversations compared with vanilla's first repeat, and how many of them differ.

    Only our own methods share the noise: ``transformers`` is compared at temperature 0 alone.
    """
    if results.settings.temperature > 0 and not row_named(name).ours:
        return 0, 0
    verdicts: dict[tuple[str, int], bool] = {}
    for run in runs:
        base = plain.get((run.prompt, run.turn, 0))
        if base is not None:
            at = (run.prompt, run.repeat)
            verdicts[at] = verdicts.get(at, True) and run.digest == base.digest
    return len(verdicts), sum(not same for same in verdicts.values())


def work_of(stats: Sequence[RequestStats]) -> Work | None:
    """Drafts and times of several answers; None: our verifier decoded nothing."""
    rounds, decode = sum(one.rounds for one in stats), sum(one.decode_ms for one in stats)
    if not rounds or not decode:
        return None
    drafted, accepted = sum(one.draft_tokens for one in stats), sum(one.accepted_tokens for one in stats)
    phases = [(k, times) for one in stats for k, times in enumerate(one.sequences_histogram) if k]
    return Work(
        acceptance_rate=accepted / drafted if drafted else 0.0,
        mean_acceptance_length=1 + accepted / rounds,
        foreseen=sum(one.foreseen_rounds for one in stats) / rounds,
        gamma=sum(one.gamma * one.rounds for one in stats) / rounds,
        sequences=sum(k * n for k, n in phases) / max(1, sum(n for _, n in phases)),
        round_ms=decode / rounds,
        forward_ms=sum(one.forward_ms for one in stats) / rounds,
        wait_ms=sum(one.wait_ms for one in stats) / rounds,
        overhead_ms=sum(one.overhead_ms for one in stats) / rounds,
    )


def percentiles(values: Sequence[float], of: Sequence[int]) -> tuple[float, ...]:
    """Linear between ranks; empty for no values."""
    if len(values) < 2:
        return tuple(values) * len(of)
    cuts = [min(values), *statistics.quantiles(values, n=100, method="inclusive"), max(values)]
    return tuple(cuts[percent] for percent in of)
