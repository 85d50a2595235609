"""The report in words: one verdict, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping

from duoactor import render
from duoactor.doctor.forecast import PAYS
from duoactor.doctor.report import ModelReport, Report

COMPARED = (1, 4, 8, 16, 32)  # rows and widths that are shown


def verdict(report: Report) -> str:
    """Will speculation pay here, by how much, and what would help most? One sentence."""
    if report.problems:
        return f"Speculation with this draft is not possible: {report.problems[0]}."
    if not report.forecasts:
        return "Without a draft model speculation pays on text that copies; `duoactor bench --methods pld,sam` tells."
    best = report.forecasts[0]
    agreed = f"the draft agrees in {report.agreement.first:.0%} of tokens" if report.agreement else ""
    rates = f"{best.tokens_per_second:.0f} instead of {report.alone_tokens_per_second:.0f} tokens/s"
    if report.helps:
        most = report.helps[0]
        better = f"; what would help most is {most.what} ({most.speedup:.2f}x then)"
    else:
        better = "; neither a better nor a faster draft would change that much"
    if best.speedup < PAYS:
        expected = f"{best.speedup:.2f}x with {best.method}"
        return f"Speculation with this draft should not pay here: {expected}, as {agreed}{better}."
    return f"Speculation should pay here: {best.speedup:.2f}x with {best.method} ({rates}), as {agreed}{better}."


def lines(report: Report) -> list[str]:
    """For people; the verdict first."""
    where = report.machine
    found = [report.verdict, ""]
    found.append(
        f"machine    {where['cpu']}, {where['cpus']} CPUs, {', '.join(report.instructions) or 'no vectors known'}"
    )
    found.append(f"           {_size(report.memory_free_bytes)} of memory free, Python {where['python']}")
    found += [f"           {device}" for device in report.devices] or ["           no GPU that torch can see"]
    found.append("           " + ", ".join(f"{name} {version}" for name, version in report.versions.items()))
    for role, model, cpus, unit in (
        ("target", report.target, report.verifier_cpus, "rows"),
        ("draft", report.draft, report.drafter_cpus, "leaves"),
    ):
        if model is not None:
            found += ["", *_model(role, model, cpus, unit)]
            if model is report.target and report.lent_us:
                found.append(f"           {_times(report.lent_us)} with the drafter's CPUs, while that rests")
    if (seen := report.agreement) is not None:
        ranks = ", ".join(f"{chance:.0%}" for chance in seen.ranks[:4])
        found += ["", f"agreement  on {seen.tokens} tokens of sample answers, by the draft's choice 1 to 4: {ranks}"]
    if report.forecasts:
        found += ["", "forecast   one stream of unlike text; text that copies is faster (retrieval is not in it)"]
        found += [
            f"           {one.method:<12} {one.speedup:.2f}x  {one.tokens_per_second:6.1f} tokens/s  gamma {one.gamma}"
            for one in report.forecasts
        ]
        found += [f"           {one.speedup:.2f}x with {one.what}" for one in report.helps]
    if report.findings:
        found += ["", *(f"{one.level:<10} {one.text}" for one in report.findings)]
    return found


def _model(role: str, model: ModelReport, cpus: tuple[int, ...], unit: str) -> list[str]:
    cores = f", CPUs {','.join(map(str, cpus))}" if cpus and model.device == "cpu" else ""
    room = f"{model.full_requests} requests of the whole context" if model.full_requests else "no whole context"
    return [
        f"{role:<10} {render.model_name(model.name)}: {model.parameters / 1e6:,.1f}M parameters, {model.dtype} on "
        f"{model.device}{cores}",
        f"           {model.vocab_size:,} token ids, context {model.max_context:,}",
        f"           weights {_size(model.weights_bytes)}, KV {model.token_bytes / 1024:,.1f} KiB a token; the pool "
        f"holds {model.kv_tokens:,} tokens ({_size(model.kv_tokens * model.token_bytes)}), {room}",
        f"           {_times(model.step_us)} for {unit}",
    ]


def _times(step_us: Mapping[int, float]) -> str:
    return ", ".join(f"{rows}: {step_us[rows] / 1000:.2f} ms" for rows in COMPARED if rows in step_us)


def _size(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
