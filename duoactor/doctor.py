"""Whether speculation pays with a pair on this machine: the pair is started, and measured for 20 seconds."""

from __future__ import annotations

import functools
import itertools
import json
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from actors.settings import RETRIEVAL, DrafterSettings, VerifierSettings, retrieves
from duoactor import render
from duoactor.bench.answers import Ours
from duoactor.bench.benchmark import Benchmark
from duoactor.bench.places import PAYS, advice, costs_of
from duoactor.bench.provenance import machine, versions
from duoactor.bench.results import Results
from duoactor.bench.suites import Prompt, by_turns, load_suite, select
from duoactor.bench.summary import AVERAGE, MethodLine, summarize
from duoactor.status import agreement, reading, taking
from protocols.messages import InlineStatus, TargetStatus

METHODS = "vanilla,sam,auto"
SECONDS = 20.0
TOKENS = 64  # tokens of an answer
PROMPTS = 3  # prompts of each task, at most
AGREES = 0.4  # share of a head's first tokens: below, the head is not the target's, or is read wrongly
BUSY = 0.75  # load of a CPU
LABEL = 11  # characters before the text of a line
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "i8mm", "bf16", "sve")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``problem``: the pair does not work. ``warning``: it works, with a limit."""

    level: Literal["problem", "warning"]
    text: str


class MeasuredMethod(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    tokens_per_second: float
    speedup: float  # over the target alone
    tokens_per_round: float
    by_task: dict[str, float]  # speed-up


class DoctorReport(msgspec.Struct, kw_only=True):
    """What ``duoactor doctor --json`` prints."""

    target: str
    draft: str
    machine: dict[str, Any]
    versions: dict[str, str]
    instructions: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()  # how the target's are stored, equal layers joined
    served: TargetStatus | None = None  # the target as the verifier serves it
    head: InlineStatus | None = None  # the verifier's own head; None: it has none
    texts: int = 0  # texts that were compared with the target's own
    methods: tuple[MeasuredMethod, ...] = ()  # vanilla first
    findings: tuple[Finding, ...] = ()
    place: str = ""  # what would pay, by the model of a round
    verdict: str = ""

    def add(self, level: Literal["problem", "warning"], text: str) -> None:
        self.findings = (*self.findings, Finding(level=level, text=text))

    @property
    def problems(self) -> list[str]:
        return [one.text for one in self.findings if one.level == "problem"]

    def speedup(self, method: str) -> float:
        return next((one.speedup for one in self.methods if one.method == method), 0.0)


def begun(verifier: VerifierSettings, drafters: Sequence[DrafterSettings], cpus: int) -> DoctorReport:
    """The facts that are known before anything is measured."""
    report = DoctorReport(
        target=verifier.target,
        draft=drafters[0].draft if drafters else "",
        machine=machine(),
        versions=versions(),
        instructions=_instructions(),
    )
    if (warning := busy(cpus)) is not None:
        report.add("warning", warning)
    if cpus == 1 and any(drafter.device == "cpu" for drafter in drafters):
        report.add("warning", "target and draft share one core: each waits for the other; more cores would help")
    return report


def sample_prompts() -> list[Prompt]:
    """Prompts of the built-in suite, tasks in turns: a slow target answers the first few only."""
    return by_turns(select(load_suite(), limit=PROMPTS))


def fill(report: DoctorReport, results: Results) -> None:
    """Take over what was measured."""
    lines = [line for line in summarize(results) if line.cells]
    report.texts = sum(line.compared for line in lines)
    report.methods = tuple(_method(line) for line in lines)
    report.place = _placed(report, results)
    if different := sum(line.different for line in lines):
        report.add("problem", f"{different} of {report.texts} texts differ from the target's own; please report this")


def _placed(report: DoctorReport, results: Results) -> str:
    """What :mod:`duoactor.bench.places` says of the pair; empty where no draft model was measured."""
    forward, step = results.models.get("forward_us"), results.models.get("step_us")
    tokens = next((one.tokens_per_round for one in report.methods if one.method == "auto"), 1.0)
    if not forward or not step or tokens <= 1:
        return ""
    work = next(line.work for line in summarize(results) if line.name == "auto")
    beside_us = 1000 * work.overhead_ms if work is not None else 0.0
    return advice(costs_of(forward, step, beside_us, 1 - 1 / tokens))


def _method(line: MethodLine) -> MeasuredMethod:
    cell = line.cells[AVERAGE]
    return MeasuredMethod(
        method=line.name,
        tokens_per_second=cell.tokens_per_second,
        speedup=cell.speedup,
        tokens_per_round=line.work.mean_acceptance_length if line.work is not None else 1.0,
        by_task={task: one.speedup for task, one in line.cells.items() if task != AVERAGE},
    )


async def measure(benchmark: Benchmark, report: DoctorReport, show: Any) -> None:
    """Methods take turns for ``SECONDS``, each on the same prompts."""
    async with benchmark.answering(show) as answers:
        await benchmark.run(answers, show, SECONDS)
        ours = answers["auto"]
        assert isinstance(ours, Ours)
        status = await ours.client.status()
    report.served = status.target
    if status.inline is not None and not benchmark.deployment.drafters:
        judge_head(report, status.inline)


def judge_head(report: DoctorReport, head: InlineStatus) -> None:
    report.head = head
    if head.agreement and head.agreement[0] < AGREES:
        report.add(
            "warning",
            f"the head {agreement(head.agreement)}: it was made for another target, is hardly trained, or has a "
            "convention that duoactor reads wrongly; please tell us its name",
        )


def verdict(report: DoctorReport) -> str:
    """The answer in one sentence: whether speculation pays here, and by how much."""
    if report.problems and not report.methods:
        return f"Nothing was measured: {report.problems[0]}."
    if report.problems:
        return f"Do not use this pair: {report.problems[0]}."
    if not report.methods:
        return "Nothing was measured: no prompt fits the target's context."
    rates = {one.method: one.tokens_per_second for one in report.methods}
    alone, auto, retrieval = rates["vanilla"], report.speedup("auto"), report.speedup(RETRIEVAL)
    measured = f"{rates.get('auto', 0.0):.0f} instead of {alone:.0f} tokens/s"
    if auto >= PAYS:
        share = f" ({retrieval:.2f}x by retrieval alone)" if retrieval else ""
        return f"Speculation pays here: auto is {auto:.2f}x the target alone, {measured}{share}."
    if retrieval >= PAYS:
        return f"This draft does not pay here: auto is {auto:.2f}x, retrieval alone {retrieval:.2f}x; use --draft sam."
    return (
        f"Speculation does not pay here: auto is {auto:.2f}x the target alone, {measured}; a larger target gains more."
    )


def lines(report: DoctorReport, width: int = render.UNBOUNDED) -> list[str]:
    """The report for people, the verdict first, wrapped at ``width`` characters. A longer word, as a path may be, stays
    whole."""
    wrap = functools.partial(textwrap.wrap, width=width, break_on_hyphens=False, break_long_words=False)
    said, *others = _lines(report)
    wrapped = (wrap(line, subsequent_indent=" " * LABEL) or [""] for line in others)
    return [*wrap(said), *itertools.chain.from_iterable(wrapped)]


def _lines(report: DoctorReport) -> list[str]:
    where, found = report.machine, [report.verdict, ""]
    vectors = ", ".join(report.instructions) or "no vector instructions known"
    found.append(f"machine    {where['cpu']}, {where['cpus']} CPUs, {vectors}")
    found.append(f"           {where.get('accelerator', 'no NVIDIA GPU')}, Python {where['python']}")
    found.append("           " + ", ".join(f"{name} {version}" for name, version in report.versions.items()))
    draft = render.model_name(report.draft) or "drafts copied from earlier text"
    found.append(f"pair       {render.model_name(report.target)} and {draft}")
    if (head := report.head) is not None:
        found.append(f"head       {render.model_name(head.model_id)}: {agreement(head.agreement) or 'drafted nothing'}")
    if (served := report.served) is not None:
        sizes = (("weights", reading(served)), ("memory", taking(served)))
        found += [f"{label:<11}{text}" for label, text in sizes if text]
        found.append(f"           {served.dtype} on {served.device}; {report.texts} texts are the target's own")
    if report.methods:
        found += ["", "measured   one stream, greedy, prompts of seven tasks in turns"]
    for one in report.methods:
        tasks = ", ".join(f"{task} {speedup:.2f}" for task, speedup in one.by_task.items())
        found.append(
            f"           {one.method:<8} {one.speedup:.2f}x  {one.tokens_per_second:7.1f} tokens/s  "
            f"{one.tokens_per_round:.2f} tokens a round" + (f"  ({tasks})" if one.method != "vanilla" else "")
        )
    if report.place:
        found += ["", f"map        {report.place}"]
    if findings := [one for one in report.findings if one.text not in report.verdict]:
        found += ["", *(f"{one.level:<10} {one.text}" for one in findings)]
    return found


def toml(report: DoctorReport, verifier: VerifierSettings, drafters: Sequence[DrafterSettings]) -> str:
    """A ``duo.toml`` with the draft if it pays, else with a drafter that retrieves."""
    pays = report.speedup("auto") >= max(PAYS, report.speedup(RETRIEVAL))
    kept = [drafter for drafter in drafters if pays or retrieves(drafter.draft)]
    text = [f"# Written by `duoactor doctor --fix`. {report.verdict}", "", "[verifier]"]
    text.append(f"target = {json.dumps(verifier.target)}")
    if verifier.tokenizer:
        text.append(f"tokenizer = {json.dumps(verifier.tokenizer)}")
    if report.served is not None:
        text += [f"device = {json.dumps(report.served.device)}", f"dtype = {json.dumps(verifier.dtype)}"]
    text += ["", "[drafter]", f"draft = {json.dumps(kept[0].draft if kept else RETRIEVAL)}"]
    text += [f"device = {json.dumps(drafter.device)}" for drafter in kept]
    return "\n".join(text) + "\n"


def busy(cpus: int) -> str | None:
    """A warning if other processes keep the machine busy; None if they do not."""
    load = load_average()
    if load <= BUSY * cpus:
        return None
    return f"the machine is busy (load {load:.1f} on {cpus} CPUs): so are its times; measure again later"


def load_average() -> float:
    """Processes that computed or waited to, in the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _instructions() -> tuple[str, ...]:
    """The vector instructions of this processor."""
    try:
        known = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return ()
    return tuple(one for one in INSTRUCTIONS if one in known)
