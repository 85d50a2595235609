"""From single runs to the figures of the tables.

Definitions, used everywhere:

- *end-to-end tokens/s*: output tokens over the client's wall clock from request to last token, prefill included; of a
  task: all its answers' tokens over all their time. *decode tokens/s*: the same without the first token and its time.
- *speed-up* φ: a method's tokens/s over vanilla's on the same prompts of the same repeat. The figure is the median over
  the repeats, the spread their lowest and highest.
- *average*: the mean of the tasks' φ.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from duoactor.bench.methods import BY_NAME, VANILLA, label, row_named
from duoactor.bench.results import Cost, Results, Run

AVERAGE = "average"
MIN_DRAFTING = 0.95  # share of its rounds in which a method that drafts must have drafted, to be called by its name
Key = tuple[str, int, int]  # prompt, turn, repeat
Time = Callable[[Run], tuple[float, float]]  # tokens, ms


@dataclass(frozen=True, slots=True)
class Cell:
    """One method on one task. ``by_repeat`` are the φ that the median and the spread are of."""

    tokens_per_second: float
    speedup: float
    low: float
    high: float
    by_repeat: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """Where a method's drafts and time went. Shares of rounds and the drafter's times are of the rounds that telemetry
    told of; None: of none."""

    acceptance_rate: float
    mean_acceptance_length: float
    drafted: int
    accepted: int
    gamma: float
    sequences: float  # mean per drafting phase; 0: none were counted
    round_ms: float
    verifier_busy: float  # share of decoding
    waiting: float
    wait_ms: float  # per round
    overhead_ms: float  # per round
    verifying_drafts: float | None = None  # share of rounds whose window held draft tokens
    at_work: float | None = None  # share of rounds in which the drafter computed
    drafting: float | None = None  # share of rounds in which it did, or whose window held drafts
    drafter_busy: float | None = None  # share of decoding
    overlap: float | None = None  # share of the drafter's work during which the target verified


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the tables. ``cells`` by task and "average", end to end; ``decode`` the same without prefill."""

    name: str
    label: str
    missing: str = ""  # why there are no figures
    cells: dict[str, Cell] = field(default_factory=dict)
    decode: dict[str, Cell] = field(default_factory=dict)
    ttft_ms: float = 0.0
    ttft_ratio: float = 0.0  # to vanilla's on the same prompt; median, with quartiles
    ttft_low: float = 0.0
    ttft_high: float = 0.0
    compared: int = 0  # conversations whose text was compared with vanilla's
    different: int = 0
    failed: int = 0  # answers that ended in an error
    prompts: tuple[float, float] = (0.0, 0.0)  # quartiles of the prompts' own end-to-end φ
    ttft_by_task: dict[str, float] = field(default_factory=dict)  # medians of the same ratios
    work: Work | None = None  # None: not ours

    @property
    def rested(self) -> bool:
        """Whether its drafter rested so much that these are not the figures of the method that was asked for."""
        row = row_named(self.name)
        if row is None or not row.always_drafts or self.work is None or self.work.drafting is None:
            return False
        return self.work.drafting < MIN_DRAFTING


def whole(run: Run) -> tuple[float, float]:
    return run.tokens, run.total_ms


def decoding(run: Run) -> tuple[float, float]:
    return max(0, run.tokens - 1), run.decode_ms


def summarize(results: Results) -> list[Line]:
    """One line per row that was asked for, in the tables' order; rows of the sweep are left out."""
    names = [name for name in BY_NAME if name in results.methods]
    return [line_of(results, name) for name in names]


def line_of(results: Results, name: str, against: str = VANILLA) -> Line:
    """``against``: the row that φ and ratios are relative to."""
    runs = [run for run in results.runs if run.method == name]
    good = {key(run): run for run in runs if not run.error}
    plain = {key(run): run for run in results.runs if run.method == against and not run.error}
    pairs = [(good[at], plain[at]) for at in good if at in plain]
    if not pairs:
        return Line(name, label(name), missing=_why(results, name, runs))
    low, middle, high = quartiles(_first_token_ratios(pairs))
    compared, different = equality(results, name, good.values(), plain)
    slow, _, fast = quartiles(_prompt_ratios(pairs))
    tasks = dict.fromkeys(run.task for run, _ in pairs)
    return Line(
        name,
        label(name),
        cells=_cells(pairs, whole),
        decode=_cells(pairs, decoding),
        ttft_ms=statistics.median(run.ttft_ms for run, _ in pairs),
        ttft_ratio=middle,
        ttft_low=low,
        ttft_high=high,
        compared=compared,
        different=different,
        failed=sum(bool(run.error) for run in runs),
        prompts=(slow, fast),
        ttft_by_task={
            task: statistics.median(_first_token_ratios([pair for pair in pairs if pair[0].task == task]) or [0.0])
            for task in tasks
        },
        work=work_of([run for run, _ in pairs]),
    )


def _first_token_ratios(pairs: Sequence[tuple[Run, Run]]) -> list[float]:
    return [run.ttft_ms / base.ttft_ms for run, base in pairs if base.ttft_ms]


def _prompt_ratios(pairs: Sequence[tuple[Run, Run]]) -> list[float]:
    """Every prompt's φ, all its turns and repeats together."""
    by_prompt: dict[str, list[tuple[Run, Run]]] = {}
    for pair in pairs:
        by_prompt.setdefault(pair[0].prompt, []).append(pair)
    rates = (
        (rate_of((run for run, _ in some), whole), rate_of((base for _, base in some), whole))
        for some in by_prompt.values()
    )
    return [rate / plain for rate, plain in rates if rate and plain]


def key(run: Run) -> Key:
    return (run.prompt, run.turn, run.repeat)


def _why(results: Results, name: str, runs: Sequence[Run]) -> str:
    if name in results.missing:
        return results.missing[name]
    errors = [run.error for run in runs if run.error]
    return errors[0] if errors else "not run yet"


def _cells(pairs: Sequence[tuple[Run, Run]], time: Time) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    repeats: dict[int, list[float]] = {}
    for task in dict.fromkeys(run.task for run, _ in pairs):
        rates: list[float] = []
        ratios: list[float] = []
        for repeat in sorted({run.repeat for run, _ in pairs}):
            here = [(r, v) for r, v in pairs if r.task == task and r.repeat == repeat]
            rate, plain = rate_of((r for r, _ in here), time), rate_of((v for _, v in here), time)
            if rate and plain:
                rates.append(rate)
                ratios.append(rate / plain)
                repeats.setdefault(repeat, []).append(rate / plain)
        if ratios:
            cells[task] = _cell(statistics.median(rates), ratios)
    if cells:
        rate = statistics.mean(cell.tokens_per_second for cell in cells.values())
        # a repeat that an interruption left without some tasks cannot be averaged like the others
        full = [statistics.mean(some) for some in repeats.values() if len(some) == len(cells)]
        cells[AVERAGE] = _cell(rate, full or [statistics.mean(cell.speedup for cell in cells.values())])
    return cells


def _cell(rate: float, ratios: Sequence[float]) -> Cell:
    return Cell(rate, statistics.median(ratios), min(ratios), max(ratios), tuple(ratios))


def rate_of(runs: Iterable[Run], time: Time) -> float:
    """Tokens per second of several answers together."""
    tokens, spent = 0.0, 0.0
    for run in runs:
        made, ms = time(run)
        tokens, spent = tokens + made, spent + ms
    return 1000 * tokens / spent if spent else 0.0


def equality(results: Results, name: str, runs: Iterable[Run], plain: dict[Key, Run]) -> tuple[int, int]:
    """Conversations compared with vanilla's first repeat, and how many of them differ.

    With noise only our own methods share it, so that ``transformers`` is compared at temperature 0 alone.
    """
    row = row_named(name)
    if results.settings.temperature > 0 and row is not None and not row.ours:
        return 0, 0
    verdicts: dict[tuple[str, int], bool] = {}
    for run in runs:
        base = plain.get((run.prompt, run.turn, 0))
        if base is not None:
            at = (run.prompt, run.repeat)
            verdicts[at] = verdicts.get(at, True) and run.digest == base.digest
    return len(verdicts), sum(not same for same in verdicts.values())


def work_of(runs: Sequence[Run]) -> Work | None:
    costs: list[Cost] = [run.cost for run in runs if run.cost is not None]
    rounds = sum(cost.rounds for cost in costs)
    decode = sum(cost.decode_ms for cost in costs)
    if not rounds or not decode:
        return None
    drafted, accepted = sum(cost.drafted for cost in costs), sum(cost.accepted for cost in costs)
    phases = total_sequences(costs)
    heard, watched = sum(cost.heard for cost in costs), sum(cost.watched for cost in costs)
    drafting_ms = sum(cost.draft_ms for cost in costs)
    return Work(
        acceptance_rate=accepted / drafted if drafted else 0.0,
        mean_acceptance_length=1 + accepted / rounds,
        drafted=drafted,
        accepted=accepted,
        gamma=sum(cost.gamma * cost.rounds for cost in costs) / rounds,
        sequences=sum(k * n for k, n in phases.items()) / max(1, sum(phases.values())),
        round_ms=decode / rounds,
        verifier_busy=sum(cost.forward_ms for cost in costs) / decode,
        waiting=sum(cost.wait_ms for cost in costs) / decode,
        wait_ms=sum(cost.wait_ms for cost in costs) / rounds,
        overhead_ms=sum(cost.overhead_ms for cost in costs) / rounds,
        verifying_drafts=sum(cost.verifying_drafts for cost in costs) / heard if heard else None,
        at_work=sum(cost.at_work for cost in costs) / watched if watched else None,
        drafting=sum(cost.drafting for cost in costs) / watched if watched else None,
        drafter_busy=drafting_ms / decode if heard else None,
        overlap=sum(cost.overlap_ms for cost in costs) / drafting_ms if drafting_ms else None,
    )


def total_sequences(costs: Iterable[Cost]) -> dict[int, int]:
    """Number of sequences -> drafting phases with so many."""
    phases: dict[int, int] = {}
    for cost in costs:
        for count, times in enumerate(cost.sequences):
            if times and count:
                phases[count] = phases.get(count, 0) + times
    return phases


def total_needed(costs: Iterable[Cost]) -> dict[tuple[int, int], int]:
    """(predicted, needed) -> phases; needed 0: the token was not among the draft's candidates."""
    phases: dict[tuple[int, int], int] = {}
    for cost in costs:
        for predicted, needed, times in cost.needed:
            phases[predicted, needed] = phases.get((predicted, needed), 0) + times
    return phases


def percentiles(values: Sequence[float], of: Sequence[int]) -> tuple[float, ...]:
    """Linear between ranks; of nothing, none."""
    if len(values) < 2:
        return tuple(values) * len(of)
    cuts = [min(values), *statistics.quantiles(values, n=100, method="inclusive"), max(values)]
    return tuple(cuts[percent] for percent in of)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = percentiles(values, (25, 50, 75)) or (0.0, 0.0, 0.0)
    return low, middle, high


def best(lines: Sequence[Line], task: str, cells: Callable[[Line], dict[str, Cell]]) -> str:
    """The row with the highest speed-up on a task."""
    there = [line for line in lines if task in cells(line) and not line.rested]
    return max(there, key=lambda line: cells(line)[task].speedup).name if there else ""
