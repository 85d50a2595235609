"""The report as tables and as a JSON document."""

from __future__ import annotations

from typing import Any

from duoactor import render
from duoactor.replay.report import Figures, Line, Report, Share

SHOWN = (1, 2, 4)  # choices among which the target's token is looked for


def document(report: Report) -> dict[str, Any]:
    found = render.plain(report)
    found["lines"] = [_described(line) for line in report.lines]
    return dict(found)


def _described(line: Line) -> dict[str, Any]:
    return {
        "draft": line.draft,
        "method": line.method,
        "all": _figures(line.all),
        "by_temperature": {name: _figures(one) for name, one in line.by_temperature.items()},
        "by_task": {name: _figures(one) for name, one in line.by_task.items()},
    }


def _figures(figures: Figures) -> dict[str, Any]:
    derived = ("tokens_per_second", "mean_acceptance_length", "acceptance_rate")
    return {**render.plain(figures), **{name: getattr(figures, name) for name in derived}}


def show(report: Report) -> None:
    for draft, steps in report.step_us.items():
        print(f"{draft}: a step takes {steps[min(steps)] / 1000:.2f} ms here, ", end="")
        print(f"a forward of {render.model_name(report.target)} {report.forward_us[1] / 1000:.2f} ms", end="\n\n")
        if some := [one for one in report.shares if one.draft == draft]:
            _show_shares(some)
        _show_lines([line for line in report.lines if line.draft == draft])
    print(
        "Predicted for one stream behind its first token; several share the forwards. Temperatures and tasks: speed-up."
    )


def _show_shares(found: list[Share]) -> None:
    made = render.table("the target's token is", ">places", ">first", *(f">of {most}" for most in SHOWN[1:]))
    for share in found:
        name = share.task or ("all" if share.temperature is None else f"temperature {share.temperature:g}")
        made.add_row(name, f"{share.places:,}", *(f"{sum(share.ranks[:most]):.3f}" for most in SHOWN))
    render.print_table(made)
    print()


def _show_lines(found: list[Line]) -> None:
    temperatures, tasks = list(found[0].by_temperature), list(found[0].by_task)
    heat = [f">T={name}" for name in temperatures] if len(temperatures) > 1 else []
    made = render.table(
        "method", ">speed-up", ">tokens/s", ">a round", ">accepted", *heat, *(f">{one}" for one in tasks)
    )
    for line in found:
        figures = line.all
        rounds = f"{figures.mean_acceptance_length:.2f}" if figures.rounds else "-"
        rate = f"{figures.acceptance_rate:.2f}" if figures.drafted else "-"
        cells = [f"{figures.speedup:.2f}x", f"{figures.tokens_per_second:.0f}", rounds, rate]
        cells += [f"{line.by_temperature[name].speedup:.2f}" for name in temperatures] if heat else []
        made.add_row(line.method, *cells, *(f"{line.by_task[name].speedup:.2f}" for name in tasks))
    render.print_table(made)
    print()
