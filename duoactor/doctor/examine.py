"""Loads both models as their actors would, on the cores that they would have, and measures them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from actors.cost import CostModel
from actors.models import Codec, ModelInfo
from actors.process import pin
from actors.settings import MAX_THREADS, DrafterSettings, VerifierSettings, retrieves
from actors.verifier.compute import INLINE_US
from actors.verifier.preflight import tokenizers_differ
from duoactor.bench.provenance import machine, versions
from duoactor.bench.suites import load_suite, select
from duoactor.config import resolve_model
from duoactor.doctor import forecast
from duoactor.doctor.agreement import agreement, texts
from duoactor.doctor.load import busy
from duoactor.doctor.report import ModelReport, Report
from duoactor.launch.cores import assign_cores, format_cpus
from protocols.errors import DuoactorError
from protocols.messages import Hello, Role

if TYPE_CHECKING:
    from actors.engines.drafts.draft import Draft
    from actors.engines.engine import Engine
    from actors.engines.targets.target import Target

INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "i8mm", "bf16", "sve")
PROMPTS = 3  # of each task
SHORT_CONTEXT = 0.5  # of the target's: a draft with less leaves long texts to the target alone


def examine(
    verifier: VerifierSettings,
    drafter: DrafterSettings,
    cpus: Sequence[int],
    show: Callable[[str], None],
    debug: bool = False,
) -> Report:
    """``show``: told what is done now. What is wrong becomes a finding of the report; with ``debug``, what a library
    raises does not."""
    from actors.engines.drafts.replay import replay_draft
    from actors.engines.measuring import facts

    report = Report(
        machine=machine(),
        versions=versions(),
        devices=facts.devices(),
        instructions=_instructions(),
        memory_free_bytes=facts.host_memory_free(),
    )
    if (told := busy(len(cpus))) is not None:
        report.add("warning", told)
    cores = assign_cores(cpus, [drafter.threads], drafters_need_cores=drafter.device == "cpu")
    report.verifier_cpus, report.drafter_cpus = cores.verifier, cores.drafters[0]
    if not cores.verifier and drafter.device == "cpu":
        report.add("warning", "target and draft share one core: each waits for the other; more cores would help")
    began = time.perf_counter()
    try:
        show("loading the target …")
        target, codec = _target(verifier, report)
        show("the target answers sample prompts …")
        with _pinned(cores.verifier):
            read = texts(target, codec, sample_prompts())
        show("loading the draft …")
        draft = _draft(drafter, report)
    except DuoactorError as error:
        report.add("problem", str(error))
        return report
    except Exception as error:  # of a library, about a model: what is found, not a defect of the doctor
        if debug:
            raise
        first = (str(error).splitlines() or [""])[0]
        report.add(
            "problem", f"a model cannot be run ({type(error).__name__}: {first}); `duoactor --debug doctor` tells where"
        )
        return report
    if draft is None:
        report.add("warning", f"--draft {drafter.draft} retrieves and has no model: what it brings depends on the text")
        return report
    if compare(target.info, draft.info, report):
        show("the draft reads the same texts …")
        with _pinned(cores.drafters[0]):
            report.agreement = agreement([ranks.tolist() for ranks in replay_draft(draft, read)])
        predict(report)
    show(f"took {time.perf_counter() - began:.0f} s")
    return report


def compare(target: ModelInfo, draft: ModelInfo, report: Report) -> bool:
    """Whether the draft can draft for the target; what limits it becomes a finding."""
    hello = Hello(
        Role.DRAFTER, "draft", "", draft.model_id, draft.vocab_size, draft.tokenizer_digest, draft.max_context,
        tokenizer=draft.tokenizer,
    )  # fmt: skip
    if (differ := tokenizers_differ(hello, target)) is not None:
        report.add("problem", differ)
        return False
    if draft.max_context < SHORT_CONTEXT * target.max_context:
        report.add(
            "warning",
            f"the draft's context is {draft.max_context:,} tokens, the target's {target.max_context:,}: longer texts "
            "are decoded without drafts",
        )
    if draft.vocab_size < target.vocab_size:
        missing = target.vocab_size - draft.vocab_size
        report.add("warning", f"the draft does not know the last {missing:,} token ids, and cannot draft for them")
    return True


def predict(report: Report) -> None:
    """Fills in what the cost model says of the times and the agreement that were measured."""
    assert report.target is not None and report.draft is not None and report.agreement is not None
    target, draft = report.target, report.draft
    inline = draft.device == "cpu" and CostModel(target.step_us)(8) <= INLINE_US
    known = forecast.Measured(target.step_us, draft.step_us, report.agreement, report.lent_us, inline)
    report.forecasts, report.helps = forecast.forecasts(known), forecast.helps(known)
    report.alone_tokens_per_second = known.alone * 1e6


def _target(settings: VerifierSettings, report: Report) -> tuple[Target, Codec]:
    from actors.engines.build import build_target
    from actors.verifier.timing import measure_lent, measure_target

    name = resolve_model(settings.target, "target")
    with _pinned(report.verifier_cpus):
        threads = settings.threads or min(MAX_THREADS, len(report.verifier_cpus) or os.cpu_count() or 1)
        lent = () if settings.threads or settings.cpus else report.drafter_cpus  # as `up` does
        target, codec = build_target(name, settings.device, settings.dtype, settings.kv_tokens, threads, lent)
        report.target = _facts(
            settings.target, target.engine, name, target.kv_slots, target.full_requests, measure_target(target)
        )
        report.lent_us = measure_lent(target, report.target.step_us) or {}
    if target.engine.recurrence is not None:
        report.add("warning", "the target has recurrent layers, so that windows hold the likeliest path only")
    elif not target.branches:
        report.add(
            "warning",
            f"in {target.info.dtype} on {target.info.device} the branches of a tree would change bits, so that windows "
            "hold the likeliest path only; --dtype float32 allows trees",
        )
    return target, codec


def _draft(settings: DrafterSettings, report: Report) -> Draft | None:
    from actors.draft_timing import measure_draft
    from actors.engines.build import build_draft

    if retrieves(settings.draft):
        return None
    name = resolve_model(settings.draft, "draft")
    with _pinned(report.drafter_cpus):
        draft = build_draft(name, settings.device, settings.dtype, settings.kv_tokens, settings.threads)
        slots = draft.engine.pool.slots
        full = slots // draft.full_request(draft.info.max_context)
        report.draft = _facts(settings.draft, draft.engine, name, slots, full, measure_draft(draft))
    return draft


def _facts(name: str, engine: Engine, path: str, slots: int, full: int, step_us: dict[int, float]) -> ModelReport:
    from actors.engines.measuring import facts

    info = engine.info
    return ModelReport(
        name=name,
        device=info.device,
        dtype=info.dtype,
        parameters=info.parameters,
        vocab_size=info.vocab_size,
        max_context=info.max_context,
        weights_bytes=facts.weights_bytes(info),
        token_bytes=facts.token_bytes(path, engine.dtype),
        kv_tokens=slots,
        full_requests=full,
        step_us=step_us,
    )


def sample_prompts() -> list[str]:
    """Of the benchmark's own, by turns of its tasks: a slow target answers the first few only."""
    by_task: dict[str, list[str]] = {}
    for prompt in select(load_suite(), limit=PROMPTS):
        by_task.setdefault(prompt.task, []).append(prompt.turns[0])
    return [text for row in zip(*by_task.values(), strict=True) for text in row]


def _instructions() -> tuple[str, ...]:
    """What this processor can do that matters here."""
    try:
        known = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return ()
    return tuple(one for one in INSTRUCTIONS if one in known)


@contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """On those CPUs; none: wherever the scheduler likes."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    pin(format_cpus(cpus))
    try:
        yield
    finally:
        if before:
            os.sched_setaffinity(0, before)
