"""Map of speed-ups over plain decoding, by cost ratio, agreement, batch size and the drafter's distance.

Some cells are measured; the others come from a model of a round. Its error on the measured cells is stated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from actors.chains import Costs
from actors.cost import Curve
from actors.models import DEFAULT_NODES

RATIOS = (3, 10, 30, 100)  # forward of one row over a draft step
AGREEMENTS = (0.3, 0.5, 0.7, 0.8, 0.9)
MAP = "map.json"
PAYS = 1.05  # less is within the noise of a usual machine
LOCAL_US = 300.0  # a message to a process on this host and the answer
Points = tuple[tuple[int, float], ...]  # rows and microseconds, as measured


@dataclass(frozen=True, slots=True)
class DraftPlace:
    """The drafter's place. ``away_ms``: each way to the drafter; None: between the target's own forwards."""

    name: str
    away_ms: float | None

    @property
    def message_us(self) -> float:
        return LOCAL_US + 2000 * (self.away_ms or 0.0)


INLINE = DraftPlace("inline", None)
HOST = DraftPlace("same host", 0.0)
FAR = tuple(DraftPlace(f"{ms:g} ms away", ms) for ms in (0.1, 1.0, 5.0, 20.0))
PLACES = (INLINE, HOST, *FAR)
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


def costs_of(forward: Points, step_us: float, beside_us: float, agreement: float, streams: int = 1) -> Costs:
    """A round's, with a draft step that does not grow with its leaves."""
    return Costs(Curve(dict(forward)), Curve({1: step_us}), 1.0, beside_us, 0.0, streams, agreement)


def speedup(place: DraftPlace, costs: Costs) -> float:
    """Speed-up of the best draft length at a place; drafts that do not pay are left out."""
    plain = 1 / _round(costs, 0)
    inline = place.away_ms is None
    make = _inline if inline else _apart
    return max(1.0, *(make(costs, gamma, place.message_us) / plain for gamma in range(1, DEFAULT_NODES + 1)))


def _round(costs: Costs, gamma: int) -> float:
    return costs.verify(1 + gamma) + costs.beside


def _inline(costs: Costs, gamma: int, _message_us: float) -> float:
    """Tokens per microsecond where target and draft take turns."""
    return (1 + costs.expected(gamma)) / (gamma * costs.draft(1) + _round(costs, gamma))


def _apart(costs: Costs, gamma: int, message_us: float) -> float:
    """Where the drafter works during forwards. After a draft that was refused, new drafts come a message and their
    steps later. Meanwhile the target waits, or goes on alone and may leave the drafted path. A window that was accepted
    whole is followed by the next at once, if its last token was drafted, too."""
    late = message_us + gamma * costs.draft(1)
    follows = costs.chance ** (gamma + 1)
    windows = 1 / (1 - follows)  # in a row
    tokens = windows * (1 + costs.expected(gamma))
    window_us = _round(costs, gamma) + (windows - 1) * max(_round(costs, gamma), gamma * costs.draft(1))
    waits = tokens / (late + window_us)
    plain_us = _round(costs, 0)
    alone = math.ceil(late / plain_us)
    tries = 1 / costs.chance**alone  # until the target's own tokens are the drafted ones
    goes_on = (alone * tries + tokens) / (alone * tries * plain_us + window_us)
    return max(waits, goes_on)


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


def advice(costs: Costs) -> str:
    """A sentence with the best place of the draft by the model."""
    gains = {place.name: speedup(place, costs) for place in (INLINE, HOST, *FAR[1:])}
    best = max(gains, key=lambda name: gains[name])
    ratio = costs.forward(1) / costs.draft(1)
    where = f"At c = {ratio:.0f} and {costs.chance:.0%} agreement"
    if gains[best] < PAYS:
        return f"{where} no place of the draft pays by the model."
    far = [place.away_ms for place in FAR if gains.get(place.name, 0.0) >= max(PAYS, gains["inline"] * PAYS)]
    said = f"inline drafts {gains['inline']:.1f}x, a drafter on this host {gains['same host']:.1f}x"
    if far:
        return f"{where} the model says {said}; a second host would pay up to {max(filter(None, far)):g} ms away."
    return f"{where} the model says {said}; a second host would not pay."
