"""The paper's figures as PNG files, drawn with matplotlib (the optional extra ``bench``)."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duoactor.bench.methods import BY_NAME, DYNAMIC, LOCKSTEP, VANILLA, label
from duoactor.bench.provenance import source
from duoactor.bench.results import Results
from duoactor.bench.summary import AVERAGE, Line, summarize, total_sequences
from duoactor.bench.tables import name_of
from duoactor.bench.timeline import Actor, Bar, excerpt, longest_kept

NO_MATPLOTLIB = "no pictures: they need matplotlib, which `pip install 'duoactor[bench]'` brings"
OURS, OTHERS, BASE = "#2f6db5", "#8a8f98", "#3a3d42"
VERIFY, DRAFT, WAIT = "#2f6db5", "#e08a2e", "#d9dce1"
SEQUENCES = ("#c9dcf2", "#86b1e0", "#2f6db5", "#1c4475", "#0d2440")
TIMELINES = (VANILLA, "sps", LOCKSTEP, DYNAMIC)
VANILLA_ROUNDS = 8  # that a timeline's width stands for


@dataclass(frozen=True, slots=True)
class Figure:
    file: str
    caption: str


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_all(results: Results, directory: Path) -> list[Figure]:
    """Draw what there are figures for."""
    lines = [line for line in summarize(results) if line.cells]
    makers: list[Callable[[Results, list[Line], Path], Figure | None]] = [
        speedups, speedups_by_task, first_tokens, timelines, sequence_shares, lengths,
    ]  # fmt: skip
    found = [make(results, lines, directory) for make in makers]
    return [figure for figure in found if figure is not None]


@contextmanager
def axes_of(
    path: Path, made_by: str, size: tuple[float, float], rows: int = 1, columns: int = 1, **shared: Any
) -> Iterator[list[Any]]:
    """That many axes, row by row; ``size``: of all together, in inches; ``shared``: ``sharex`` or ``sharey``. At the
    end the picture is written, and below it what made it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(canvas)
    made = [axes for row in canvas.subplots(rows, columns, squeeze=False, **shared) for axes in row]
    for axes in made:
        axes.spines[["top", "right"]].set_visible(False)
    yield made
    characters = int(size[0] * 18)  # of size 6 that fit
    canvas.supxlabel("\n".join(textwrap.wrap(made_by, characters)), size=6, color="#8a8f98", x=0.01, ha="left")
    canvas.savefig(path, dpi=130)


def _colour(name: str) -> str:
    if name == VANILLA:
        return BASE
    return OURS if BY_NAME[name].ours else OTHERS


def _bars(axes: Any, lines: Sequence[Line], values: list[float], spread: list[tuple[float, float]], what: str) -> None:
    """Horizontal bars with spreads, the value behind each, a rule at vanilla's 1."""
    places = range(len(lines))
    errors = [
        [max(0.0, v - low) for v, (low, _) in zip(values, spread, strict=True)],
        [max(0.0, high - v) for v, (_, high) in zip(values, spread, strict=True)],
    ]
    axes.barh(places, values, color=[_colour(line.name) for line in lines], height=0.68)
    if any(low < high for low, high in spread):
        axes.errorbar(values, places, xerr=errors, fmt="none", ecolor="#111111", elinewidth=1, capsize=2.5)
    for place, value, (_, high) in zip(places, values, spread, strict=True):
        axes.annotate(
            f"{value:.2f}", (max(value, high), place), (5, 0), textcoords="offset points", va="center", size=8
        )
    axes.axvline(1, color=BASE, linewidth=0.8, linestyle=":")
    axes.set_yticks(places, [name_of(line) for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlim(0, 1.15 * max([1.0, *values, *(high for _, high in spread)]))
    axes.set_xlabel(what)


def _spread_of(results: Results) -> str:
    return "lines: lowest and highest repeat" if results.repeats > 1 else "one repeat, so that no spread is known"


def speedups(results: Results, lines: list[Line], directory: Path) -> Figure | None:
    cells = [line.cells[AVERAGE] for line in lines]
    if not cells:
        return None
    spread = [(cell.low, cell.high) for cell in cells]
    figure = Figure("speedup.png", f"Average speed-up over vanilla, end to end; {_spread_of(results)}.")
    with axes_of(directory / figure.file, source(results), (7.5, 1.4 + 0.32 * len(lines))) as (axes,):
        _bars(axes, lines, [cell.speedup for cell in cells], spread, "speed-up over vanilla")
    return figure


def speedups_by_task(results: Results, lines: list[Line], directory: Path) -> Figure | None:
    figure = Figure(
        "speedup_by_task.png", "Speed-up over vanilla by task, end to end; lines: lowest and highest repeat."
    )
    values = {
        task: {line.name: (cell.speedup, cell.low, cell.high) for line in lines if (cell := line.cells.get(task))}
        for task in results.settings.tasks
    }
    return _by_task(figure, results, lines, directory, values)


def first_tokens(results: Results, lines: list[Line], directory: Path) -> Figure | None:
    """Figure 3."""
    figure = Figure(
        "figure3_ttft.png",
        "Figure 3: time to first token relative to vanilla's on the same prompt, by task (lower is better); medians.",
    )
    values = {
        task: {line.name: (ratio, ratio, ratio) for line in lines if (ratio := line.ttft_by_task.get(task))}
        for task in results.settings.tasks
    }
    return _by_task(figure, results, lines, directory, values)


def _by_task(
    figure: Figure,
    results: Results,
    lines: list[Line],
    directory: Path,
    values: dict[str, dict[str, tuple[float, float, float]]],
) -> Figure | None:
    """A panel for every task; ``values``: by task and row, with their lowest and highest."""
    tasks = [task for task in results.settings.tasks if values[task]]
    if not tasks:
        return None
    columns = min(4, len(tasks))
    rows = -(-len(tasks) // columns)
    size = (2.2 + 2.6 * columns, 0.5 + rows * (0.7 + 0.2 * len(lines)))
    with axes_of(directory / figure.file, source(results), size, rows, columns, sharey=True) as made:
        for axes, task in zip(made, tasks, strict=False):
            there = [line for line in lines if line.name in values[task]]
            found = [values[task][line.name] for line in there]
            _bars(axes, there, [one[0] for one in found], [one[1:] for one in found], "")
            count = len({run.prompt for run in results.runs if run.task == task})
            title = f"{task} ({count} prompt{'s' if count != 1 else ''})"
            axes.set_title(title, loc="left", fontsize=9, fontweight="bold")
        for axes in made[len(tasks) :]:
            axes.set_visible(False)
    return figure


def timelines(results: Results, lines: list[Line], directory: Path) -> Figure | None:
    """Figure 4."""
    base = longest_kept(results.runs, VANILLA)
    if base is None:
        return None
    chosen = [run for name in TIMELINES if (run := longest_kept(results.runs, name, base.prompt)) is not None]
    steps = sorted(one.wall_us for one in base.rounds)
    span = VANILLA_ROUNDS * steps[len(steps) // 2]
    figure = Figure(
        "figure4_timeline.png",
        f"Figure 4: {span / 1000:.0f} ms of the same answer ({base.prompt}) with each method. Every bar is measured: "
        "verifying (with the tokens that it committed) and waiting by the verifier, each forward of the draft model by "
        "the drafter.",
    )
    size = (9, 1.1 + 1.15 * len(chosen))
    with axes_of(directory / figure.file, source(results), size, len(chosen), sharex=True) as panels:
        named = {line.name: name_of(line) for line in lines}
        for panel, run in zip(panels, chosen, strict=True):
            _timeline(panel, named.get(run.method, label(run.method)), excerpt(run.rounds, span), span)
        panels[-1].set_xlabel("ms")
        _legend(panels[0], (("verifying", VERIFY), ("waiting for drafts", WAIT), ("drafting", DRAFT)))
    return figure


def _timeline(panel: Any, title: str, drawn: Sequence[Bar], span: float) -> None:
    height: dict[Actor, int] = {"verifier": 1, "drafter": 0}
    colours = {"verify": VERIFY, "wait": WAIT, "draft": DRAFT}
    for bar in drawn:
        left, width = bar.start_us / 1000, bar.length_us / 1000
        place = height[bar.actor]
        panel.barh(place, width, left=left, height=0.62, color=colours[bar.kind], edgecolor="white", linewidth=0.3)
        if bar.tokens:
            panel.text(left + width / 2, place, str(bar.tokens), ha="center", va="center", color="white", size=8)
    panel.set_yticks([1, 0], ["verifier", "drafter"])
    panel.set_ylim(-0.5, 1.5)
    panel.set_xlim(0, span / 1000)
    tokens = sum(bar.tokens for bar in drawn)
    panel.set_title(f"{title}: {tokens} tokens", loc="left", fontsize=9, fontweight="bold")


def _legend(axes: Any, entries: Sequence[tuple[str, str]]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in entries]
    axes.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(handles), frameon=False, fontsize=8
    )


def sequence_shares(results: Results, lines: list[Line], directory: Path) -> Figure | None:
    """Figure 5."""
    by_task: dict[str, dict[int, int]] = {}
    for task in results.settings.tasks:
        runs = (r for r in results.runs if r.method == DYNAMIC and r.task == task)
        phases = total_sequences(run.cost for run in runs if run.cost is not None)
        if phases:
            by_task[task] = phases
    if not by_task:
        return None
    figure = Figure(
        "figure5_sequences.png", "Figure 5: number of draft sequences that the θ rule chose, share of phases by task."
    )
    most = len(SEQUENCES)
    with axes_of(directory / figure.file, source(results), (7.5, 1.5 + 0.36 * len(by_task))) as (axes,):
        places = range(len(by_task))
        left = [0.0] * len(by_task)
        counts = sorted({min(k, most) for phases in by_task.values() for k in phases})
        for k in counts:
            shares = [
                100 * sum(n for one, n in phases.items() if min(one, most) == k) / sum(phases.values())
                for phases in by_task.values()
            ]
            axes.barh(places, shares, left=left, color=SEQUENCES[k - 1], height=0.68)
            for place, share, start in zip(places, shares, left, strict=True):
                if share >= 6:
                    dark = k >= 3
                    middle, colour = start + share / 2, "white" if dark else "#111111"
                    axes.text(middle, place, f"{share:.0f}", ha="center", va="center", size=8, color=colour)
            left = [a + b for a, b in zip(left, shares, strict=True)]
        axes.set_yticks(places, list(by_task))
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of drafting phases")
        names = [(f"{k} or more" if k == most else str(k), SEQUENCES[k - 1]) for k in counts]
        _legend(axes, names)
    return figure


def lengths(results: Results, lines: list[Line], directory: Path) -> Figure | None:
    """Figure 1."""
    found = results.lengths
    if found is None or not found.lengths:
        return None
    figure = Figure(
        "figure1_lengths.png",
        f"Figure 1: time to draft and to verify {found.tokens} tokens by length of the input, each model alone.",
    )
    with axes_of(directory / figure.file, source(results), (6.5, 4.0)) as (axes,):
        series = (
            (f"verify {found.tokens} tokens", found.verify_us, VERIFY, "o-"),
            ("decode 1 token", found.decode_us, BASE, "^:"),
            (f"draft {found.tokens} tokens", found.draft_us, DRAFT, "s-"),
        )
        for name, times, colour, style in series:
            if times:
                axes.plot(found.lengths, [us / 1000 for us in times], style, color=colour, label=name, markersize=5)
        axes.set_xscale("log", base=2)
        axes.set_xticks(found.lengths, [str(length) for length in found.lengths])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens of input")
        axes.set_ylabel("ms")
        axes.legend(frameon=False, fontsize=8)
    return figure
