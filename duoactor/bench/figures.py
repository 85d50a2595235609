"""The paper's figures as PNG files, drawn with matplotlib (the optional extra ``bench``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duoactor.bench.methods import BY_NAME, DYNAMIC, VANILLA, label
from duoactor.bench.results import Results
from duoactor.bench.summary import AVERAGE, Line, summarize, total_sequences
from duoactor.bench.timeline import Actor, excerpt, longest_kept

NO_MATPLOTLIB = "no pictures: they need matplotlib, which `pip install 'duoactor[bench]'` brings"
OURS, OTHERS, BASE = "#2f6db5", "#8a8f98", "#3a3d42"
VERIFY, DRAFT, WAIT = "#2f6db5", "#e08a2e", "#d9dce1"
SEQUENCES = ("#c9dcf2", "#86b1e0", "#2f6db5", "#1c4475", "#0d2440")
TIMELINES = (VANILLA, "sps", DYNAMIC)
VANILLA_ROUNDS = 6  # that a timeline's width stands for


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
        speedups, first_tokens, timelines, sequence_shares, lengths,
    ]  # fmt: skip
    found = [make(results, lines, directory) for make in makers]
    return [figure for figure in found if figure is not None]


@contextmanager
def _axes(path: Path, width: float, height: float, rows: int = 1) -> Iterator[Any]:
    """One axes object, or a list of them; the file is written at the end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    made = canvas.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0]
    for axes in made:
        axes.spines[["top", "right"]].set_visible(False)
    yield made[0] if rows == 1 else list(made)
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
    axes.set_yticks(places, [line.label for line in lines])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max([1.0, *values, *(high for _, high in spread)]))
    axes.set_xlabel(what)


def speedups(results: Results, lines: list[Line], directory: Path) -> Figure | None:
    cells = [line.cells[AVERAGE] for line in lines]
    if not cells:
        return None
    figure = Figure("speedup.png", "Average speed-up over vanilla, end to end; lines: lowest and highest repeat.")
    with _axes(directory / figure.file, 7.5, 1.2 + 0.32 * len(lines)) as axes:
        values = [cell.speedup for cell in cells]
        _bars(axes, lines, values, [(cell.low, cell.high) for cell in cells], "speed-up over vanilla")
    return figure


def first_tokens(results: Results, lines: list[Line], directory: Path) -> Figure | None:
    """Figure 3."""
    if not lines:
        return None
    figure = Figure(
        "figure3_ttft.png",
        "Figure 3: time to first token relative to vanilla's on the same prompt (lower is better); median, quartiles.",
    )
    with _axes(directory / figure.file, 7.5, 1.2 + 0.32 * len(lines)) as axes:
        spread = [(line.ttft_low, line.ttft_high) for line in lines]
        _bars(axes, lines, [line.ttft_ratio for line in lines], spread, "time to first token, vanilla = 1")
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
        f"Figure 4: {span / 1000:.0f} ms of the same answer ({base.prompt}); the number in a verifying bar is the "
        "tokens that it committed. Verifying bars are measured; drafting bars have their measured length and end where "
        "drafting must have ended, before the forward that verifies it.",
    )
    with _axes(directory / figure.file, 9, 0.9 + 1.15 * len(chosen), len(chosen)) as made:
        panels = made if isinstance(made, list) else [made]
        for panel, run in zip(panels, chosen, strict=True):
            _timeline(panel, label(run.method), excerpt(run.rounds, span), span)
        panels[-1].set_xlabel("ms")
        _legend(panels[0], (("verifying", VERIFY), ("waiting for drafts", WAIT), ("drafting", DRAFT)))
    return figure


def _timeline(panel: Any, title: str, drawn: Sequence[Any], span: float) -> None:
    height: dict[Actor, int] = {"verifier": 1, "drafter": 0}
    colours = {"verify": VERIFY, "wait": WAIT, "draft": DRAFT}
    tokens = 0
    for bar in drawn:
        left, width = bar.start_us / 1000, min(bar.length_us, span - bar.start_us) / 1000
        place = height[bar.actor]
        panel.barh(place, width, left=left, height=0.62, color=colours[bar.kind], edgecolor="white", linewidth=0.8)
        if bar.kind == "verify":
            tokens += bar.tokens
            panel.text(left + width / 2, place, str(bar.tokens), ha="center", va="center", color="white", size=8)
    panel.set_yticks([1, 0], ["verifier", "drafter"])
    panel.set_ylim(-0.5, 1.5)
    panel.set_xlim(0, span / 1000)
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
    with _axes(directory / figure.file, 7.5, 1.3 + 0.36 * len(by_task)) as axes:
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
    with _axes(directory / figure.file, 6.5, 3.8) as axes:
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
