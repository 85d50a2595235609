"""Map of speed-ups over plain decoding, by cost ratio, agreement, batch size and the drafter's distance.

Some cells are measured; the others come from the model of a round in :mod:`duoactor.bench.places`. Its error on the
measured cells is stated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from actors.chains import Costs
from actors.cost import Curve
from duoactor.bench.places import PLACES, DraftPlace, Points, advice, costs_of, speedup
from duoactor.bench.report import Table, model_name

RATIOS = (3, 10, 30, 100)  # forward of one row over a draft step
AGREEMENTS = (0.3, 0.5, 0.7, 0.8, 0.9)
RETRIEVAL, ALL = "retrieval", "all in one"  # all: inline, and a drafter apart
SECOND = "all, 1 ms away"  # what a second machine adds to all that one can do


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One measured speed-up; lowest and highest of the repeats."""

    place: str
    streams: int
    tokens_per_second: float
    speedup: float
    low: float
    high: float
    model: float = 0.0  # what the model says; 0: it has no figure for such a place


class PayMap(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of ``map.json``."""

    command: str = ""
    machine: dict[str, Any] = {}
    models: dict[str, Any] = {}
    forward_us: Points  # the target's forwards, by rows
    step_us: float  # the draft's step
    beside_us: float  # rest of a round, beside the forward
    agreement: float  # share of draft tokens that are the target's own
    measured: tuple[Cell, ...] = ()
    different: int = 0  # texts that were not plain decoding's

    @property
    def ratio(self) -> float:
        return self.forward_us[0][1] / self.step_us

    def costs(self) -> Costs:
        return costs_of(self.forward_us, self.step_us, self.beside_us, self.agreement)

    def advice(self) -> str:
        return advice(self.costs())

    def error(self) -> tuple[float, float]:
        """Median and largest relative error of the model on the measured cells."""
        off = [abs(cell.model / cell.speedup - 1) for cell in self.measured if cell.model and cell.speedup]
        return (statistics.median(off), max(off)) if off else (0.0, 0.0)


def grid(costs: Costs, place: DraftPlace) -> Iterator[tuple[int, float, float]]:
    """Cost ratio, agreement and speed-up by the model: of other drafts with the target's forward, for one stream."""
    for ratio in RATIOS:
        for agreement in AGREEMENTS:
            step = Curve({1: costs.forward(1) / ratio})
            yield ratio, agreement, speedup(place, costs._replace(step=step, streams=1, chance=agreement))


def modelled(cells: Sequence[Cell], costs: Costs) -> tuple[Cell, ...]:
    """Measured cells with what the model says of each."""
    by_name = {place.name: place for place in PLACES}
    return tuple(
        msgspec.structs.replace(
            cell, model=round(speedup(by_name[cell.place], costs._replace(streams=cell.streams)), 3)
        )
        if cell.place in by_name
        else cell
        for cell in cells
    )


def markdown(found: PayMap) -> str:
    """The report of a map: measured cells, and the model's figure for each."""
    batches = sorted({cell.streams for cell in found.measured})
    cells = {(cell.place, cell.streams): cell for cell in found.measured}
    columns = [name for batch in batches for name in (f"batch {batch}: tokens/s", "speed-up", "model")]
    rows = []
    for place in dict.fromkeys(cell.place for cell in found.measured):
        row = [place]
        for batch in batches:
            cell = cells[place, batch]
            spread = f" ({cell.low:.2f}-{cell.high:.2f})" if cell.low < cell.high else ""
            row += [f"{cell.tokens_per_second:.0f}", f"{cell.speedup:.2f}{spread}"]
            row.append(f"{cell.model:.2f}" if cell.model else "")
        rows.append(tuple(row))
    median, largest = found.error()
    machine = ", ".join(f"{name} {value}" for name, value in found.machine.items())
    return (
        f"`{found.command}`, {time.strftime('%d %B %Y')}: target {model_name(found.models, 'target')}, draft "
        f"{model_name(found.models, 'draft')}; a forward: {found.forward_us[0][1] / 1000:.1f} ms, c = "
        f"{found.ratio:.0f} draft steps; agreement {found.agreement:.0%}. {found.different} texts differ from plain "
        f"decoding's. The model is off by {median:.0%} (median), {largest:.0%} at most. {found.advice()} "
        f"Machine: {machine}.\n\n" + Table("", ("place of the draft", *columns), tuple(rows)).markdown() + "\n"
    )
