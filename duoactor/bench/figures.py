"""Pictures as PNG files, drawn with matplotlib (the optional extra ``bench``)."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from duoactor.bench.methods import DYNAMIC, LOCKSTEP, VANILLA, row_named
from duoactor.bench.provenance import source
from duoactor.bench.results import BenchRound, Results, Run
from duoactor.bench.streams import StreamsLine, summarize_streams
from duoactor.bench.summary import AVERAGE, summarize

NO_MATPLOTLIB = "no pictures: they need matplotlib; install it with `pip install 'duoactor[bench]'`"
OURS, OTHERS, BASE = "#2f6db5", "#8a8f98", "#3a3d42"
COLOURS = {"verify": OURS, "draft": "#e08a2e", "wait": "#d9dce1"}
LINES = (OURS, COLOURS["draft"], "#4a9a5b", "#8e5bb0", "#b8473f")  # of methods beside vanilla, in turns
TIMELINES = (VANILLA, "sps", LOCKSTEP, DYNAMIC)
VANILLA_ROUNDS = 8  # width of a timeline
SKIPPED = 3  # rounds at an answer's start that a timeline leaves out


@dataclass(frozen=True, slots=True)
class Figure:
    file: str
    caption: str


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_all(results: Results, directory: Path) -> list[Figure]:
    """Draw what there are figures for."""
    makers = (throughputs,) if results.loads else (speedups, timelines)
    return [figure for make in makers if (figure := make(results, directory)) is not None]


@contextmanager
def axes_of(
    path: Path, made_by: str, size: tuple[float, float], rows: int = 1, columns: int = 1, **shared: Any
) -> Iterator[list[Any]]:
    """That many axes, row by row. At the end the picture is written, with ``made_by`` below it.

    ``size``: of all together, in inches. ``shared``: ``sharex`` or ``sharey``."""
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


def speedups(results: Results, directory: Path) -> Figure | None:
    """Speed-up over vanilla, a panel for the average and for every task."""
    lines = [line for line in summarize(results) if line.cells]
    tasks = [task for task in (AVERAGE, *results.settings.tasks) if any(task in line.cells for line in lines)]
    if not tasks:
        return None
    figure = Figure("speedup.png", "Speed-up over vanilla, end to end; lines: lowest and highest repeat.")
    columns = min(4, len(tasks))
    rows = -(-len(tasks) // columns)
    size = (2.2 + 2.6 * columns, 0.5 + rows * (0.7 + 0.2 * len(lines)))
    with axes_of(directory / figure.file, source(results), size, rows, columns, sharey=True) as made:
        for axes, task in zip(made, tasks, strict=False):
            for place, line in enumerate(lines):
                if (cell := line.cells.get(task)) is None:
                    continue
                colour = BASE if line.name == VANILLA else OURS if row_named(line.name).ours else OTHERS
                axes.barh(place, cell.speedup, color=colour, height=0.68)
                axes.plot([cell.low, cell.high], [place, place], color="#111111", linewidth=1)
                end = (max(cell.speedup, cell.high), place)
                axes.annotate(f"{cell.speedup:.2f}", end, (4, 0), textcoords="offset points", va="center", size=8)
            axes.axvline(1, color=BASE, linewidth=0.8, linestyle=":")
            axes.set_yticks(range(len(lines)), [line.label for line in lines])
            axes.set_ylim(len(lines) - 0.5, -0.5)
            axes.margins(x=0.15)
            axes.set_title(task, loc="left", fontsize=9, fontweight="bold")
        for axes in made[len(tasks) :]:
            axes.set_visible(False)
    return figure


@dataclass(frozen=True, slots=True)
class Bar:
    """What one device did, in µs from the answer's first bar."""

    kind: Literal["verify", "wait", "draft"]
    start_us: float
    end_us: float
    tokens: int = 0  # committed


def bars(rounds: Sequence[BenchRound]) -> list[Bar]:
    """Every bar of one answer, as the actors measured it: the drafter's forwards on the verifier's clock."""
    found: list[tuple[Literal["verify", "wait", "draft"], float, float, int]] = []
    for one in rounds:
        if one.wait_us > 0:
            found.append(("wait", one.waited_from_us, one.wait_us, 0))
        found.append(("verify", one.started_us, one.forward_us, one.committed))
        found += [("draft", start, length, 0) for start, length in one.draft_forwards]
    origin = min((start for _, start, _, _ in found), default=0.0)
    return [Bar(kind, start - origin, start - origin + length, tokens) for kind, start, length, tokens in found]


def excerpt(rounds: Sequence[BenchRound], span_us: float) -> list[Bar]:
    """``span_us`` microseconds from the forward of round ``SKIPPED`` on; bars are cut at both ends."""
    every = bars(rounds)
    begin = [bar.start_us for bar in every if bar.kind == "verify"][min(SKIPPED, len(rounds) - 1)]
    seen = []
    for bar in every:
        start, end = max(bar.start_us - begin, 0.0), min(bar.end_us - begin, span_us)
        if start < end:
            seen.append(Bar(bar.kind, start, end, bar.tokens if bar.end_us - begin <= span_us else 0))
    return seen


def longest_kept(runs: Sequence[Run], method: str, prompt: str = "") -> Run | None:
    """The run with the most kept rounds."""
    kept = [run for run in runs if run.method == method and run.rounds and prompt in ("", run.prompt)]
    return max(kept, key=lambda run: len(run.rounds), default=None)


def timelines(results: Results, directory: Path) -> Figure | None:
    """A few rounds of both devices (the paper's figure 4)."""
    base = longest_kept(results.runs, VANILLA)
    if base is None:
        return None
    chosen = [run for name in TIMELINES if (run := longest_kept(results.runs, name, base.prompt)) is not None]
    steps = sorted(one.wall_us for one in base.rounds)
    span = VANILLA_ROUNDS * steps[len(steps) // 2]
    figure = Figure(
        "timeline.png",
        f"{span / 1000:.0f} ms of the same answer ({base.prompt}) with each method. Every bar is measured: verifying "
        "(with the tokens that it committed) and waiting by the verifier, each draft forward by the drafter.",
    )
    size = (9, 1.1 + 1.15 * len(chosen))
    with axes_of(directory / figure.file, source(results), size, len(chosen), sharex=True) as panels:
        for panel, run in zip(panels, chosen, strict=True):
            _timeline(panel, row_named(run.method).label, excerpt(run.rounds, span), span)
        panels[-1].set_xlabel("ms")
        _legend(panels[0])
    return figure


def _timeline(panel: Any, title: str, drawn: Sequence[Bar], span: float) -> None:
    for bar in drawn:
        left, width = bar.start_us / 1000, (bar.end_us - bar.start_us) / 1000
        place = 0 if bar.kind == "draft" else 1
        panel.barh(place, width, left=left, height=0.62, color=COLOURS[bar.kind], edgecolor="white", linewidth=0.3)
        if bar.tokens:
            panel.text(left + width / 2, place, str(bar.tokens), ha="center", va="center", color="white", size=8)
    panel.set_yticks([1, 0], ["verifier", "drafter"])
    panel.set_ylim(-0.5, 1.5)
    panel.set_xlim(0, span / 1000)
    panel.set_title(f"{title}: {sum(bar.tokens for bar in drawn)} tokens", loc="left", fontsize=9, fontweight="bold")


def _legend(panel: Any) -> None:
    from matplotlib.patches import Patch

    names = {"verify": "verifying", "wait": "waiting for drafts", "draft": "drafting"}
    handles = [Patch(color=COLOURS[kind], label=name) for kind, name in names.items()]
    panel.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=3, frameon=False, fontsize=8)


def throughputs(results: Results, directory: Path) -> Figure | None:
    """Throughput, speed-up and time to first token by number of streams."""
    lines = summarize_streams(results)
    figure = Figure("streams.png", "So many streams at once, each of which sends its next request when one has ended.")
    values: dict[str, Callable[[StreamsLine], float]] = {
        "tokens/s of all streams": lambda line: line.tokens_per_second,
        "over vanilla": lambda line: line.speedup,
        "first token, ms: median": lambda line: line.first_ms[0] if line.first_ms else 0.0,
    }
    with axes_of(directory / figure.file, source(results), (10.5, 3.4), 1, 3, sharex=True) as panels:
        for panel, (title, value) in zip(panels, values.items(), strict=True):
            for place, name in enumerate(dict.fromkeys(line.name for line in lines)):
                mine = [line for line in lines if line.name == name]
                colour = BASE if name == VANILLA else LINES[place % len(LINES)]
                points = [line.streams for line in mine], [value(line) for line in mine]
                panel.plot(*points, "o-", color=colour, label=mine[0].label, markersize=4)
            panel.set_title(title, loc="left", fontsize=9, fontweight="bold")
            panel.set_ylim(bottom=0)
            panel.set_xlabel("streams")
        loads = sorted({line.streams for line in lines})
        panels[0].set_xscale("log", base=2)
        panels[0].set_xticks(loads, [str(load) for load in loads])
        panels[0].minorticks_off()
        panels[0].legend(frameon=False, fontsize=8)
    return figure
