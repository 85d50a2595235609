"""Agreement by task before and after training, as a PNG file (matplotlib, the optional extra ``bench``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from actors.training.plan import Result
from duoactor.bench.figures import OTHERS, OURS
from duoactor.distill.report import SHOWN, rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: Result, path: Path) -> None:
    figure_of(result).savefig(path, dpi=120)


def figure_of(result: Result) -> Figure:
    from matplotlib.figure import Figure

    found = rows(result)
    temperatures = list(dict.fromkeys(row.temperature for row in found))
    figure = Figure(figsize=(9, 2.6 * len(temperatures)), layout="constrained")
    for [ax], temperature in zip(figure.subplots(len(temperatures), squeeze=False), temperatures, strict=True):
        shown = [row for row in found if row.temperature == temperature]
        for name, shift, colour in (("before", -0.2, OTHERS), ("after", 0.2, OURS)):
            for choice in reversed(range(len(SHOWN))):
                heights = [getattr(row, name)[choice] for row in shown]
                places = [i + shift for i in range(len(shown))]
                label = None if choice else name
                ax.bar(places, heights, 0.38, color=colour, alpha=1 / SHOWN[choice], label=label)
        ax.set_xticks(range(len(shown)), [row.task for row in shown], fontsize=8)
        ax.set_ylim(0, 1)
        ax.set_ylabel(f"T = {temperature:g}")
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_title("The target's next token is the draft's first choice; paler: of 2, of 4", fontsize=10)
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1)}  # bars may be anywhere below
    figure.axes[0].legend(**above, ncols=2, fontsize=8, frameon=False)
    return figure
