"""A picture for each kind of arrivals: speed, latency and fairness by the number of streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from duoactor.bench.figures import BASE, DRAFT, Figure, axes_of
from duoactor.bench.load.arrivals import CLOSED
from duoactor.bench.load.cells import LoadResults
from duoactor.bench.load.summary import LoadLine, summarize_load
from duoactor.bench.methods import VANILLA
from duoactor.bench.provenance import source

Value = Callable[[LoadLine], float | None]
COLOURS = ("#2f6db5", DRAFT, "#4a9a5b", "#8e5bb0", "#b8473f")  # of the methods beside vanilla, in turns


def draw_loads(results: LoadResults, directory: Path) -> list[Figure]:
    lines = summarize_load(results)
    kinds = dict.fromkeys(line.arrivals for line in lines)
    return [_draw(results, [line for line in lines if line.arrivals == kind], kind, directory) for kind in kinds]


def _draw(results: LoadResults, lines: Sequence[LoadLine], kind: str, directory: Path) -> Figure:
    how = {
        CLOSED: "so many streams at once, each of which asks again when it was answered",
        "poisson": "requests that come one by one, at the rate that vanilla answers with so many streams",
        "bursts": "requests that come so many at once, at the rate that vanilla answers with so many streams",
    }[kind]
    figure = Figure(f"load_{kind}.png", f"{how[0].upper()}{how[1:]}.")
    with axes_of(directory / figure.file, source(results), (10.5, 6.2), 2, 3, sharex=True) as panels:
        _curves(panels[0], lines, "tokens/s of all streams", lambda line: line.tokens_per_second)
        _curves(panels[1], lines, "tokens/s over vanilla's", lambda line: line.speedup)
        others = [line for line in lines if line.name != VANILLA]
        for name in dict.fromkeys(line.name for line in others):
            mine = [line for line in others if line.name == name]
            places = [line.streams for line in mine]
            panels[1].vlines(places, [line.low for line in mine], [line.high for line in mine], color="#111111", lw=1)
        panels[1].axhline(1, color=BASE, linewidth=0.8, linestyle=":")
        _spread(panels[2], lines, "first token, ms", lambda line: line.first_ms)
        _spread(panels[3], lines, "pause of a reader, ms", lambda line: line.gap_ms)
        _curves(panels[4], lines, "lowest answer's share of turns", lambda line: line.lowest_rounds)
        _curves(panels[4], lines, "", lambda line: line.lowest_tokens, "--")
        panels[4].axhline(0.5, color=BASE, linewidth=0.8, linestyle=":")
        panels[4].annotate("dashed: of tokens", (0.02, 0.04), xycoords="axes fraction", size=7, color="#8a8f98")
        _curves(panels[5], lines, "pause while a long prompt is read, rounds", lambda line: _at(line.stall, 2))
        _curves(panels[5], lines, "", lambda line: _at(line.stall, 3), ":")
        panels[5].axhline(3, color=BASE, linewidth=0.8, linestyle=":")
        panels[5].annotate(
            "line: 99th percentile, dots: longest;\n3: two rounds of prompt and its own", (0.02, 0.88),
            xycoords="axes fraction", size=7, color="#8a8f98",
        )  # fmt: skip
        for place, panel in enumerate(panels):
            panel.set_ylim(bottom=0) if place not in (2, 3) else _milliseconds(panel)
        loads = sorted({line.streams for line in lines})
        panels[0].set_xscale("log", base=2)
        panels[0].set_xticks(loads, [str(load) for load in loads])
        panels[0].minorticks_off()
        for panel in panels[3:]:
            panel.set_xlabel("streams")
        panels[0].legend(frameon=False, fontsize=8)
    return figure


def _milliseconds(panel: Any) -> None:
    """Over three powers of ten, as plain numbers: 5, 10, 20, 50."""
    panel.set_yscale("log", subs=(2, 5))
    for axis_formatter in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        axis_formatter("{x:g}")


def _at(values: Sequence[float], place: int) -> float | None:
    return values[place] if values else None


def _curves(panel: Any, lines: Sequence[LoadLine], title: str, value: Value, style: str = "-") -> None:
    names = list(dict.fromkeys(line.name for line in lines))
    others = [name for name in names if name != VANILLA]
    for name in names:
        found = [(line.streams, y) for line in lines if line.name == name and (y := value(line)) is not None]
        colour = BASE if name == VANILLA else COLOURS[others.index(name) % len(COLOURS)]
        shown = next(line.label for line in lines if line.name == name) if title else None
        marker = {"marker": "o", "markersize": 3.5} if style == "-" else {}
        panel.plot([x for x, _ in found], [y for _, y in found], style, color=colour, label=shown, **marker)
    if title:
        panel.set_title(title, loc="left", fontsize=9, fontweight="bold")


def _spread(panel: Any, lines: Sequence[LoadLine], title: str, values: Callable[[LoadLine], Sequence[float]]) -> None:
    """The median as a line, the 95th and 99th percentile dashed and dotted."""
    _curves(panel, lines, f"{title}: 50, 95, 99%", lambda line: _at(values(line), 0))
    for place, style in ((1, "--"), (2, ":")):
        _curves(panel, lines, "", lambda line, place=place: _at(values(line), place), style)  # type: ignore[misc]
